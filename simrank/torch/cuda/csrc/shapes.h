// Operations of which only the shapes are found out: torch's Meta kernels say what comes of a call,
// once per form (operator, shapes, strides, types, numbers, shared storages); later calls replay it.
#pragma once
#include "fallback.h"
#include "values.h"

namespace simrank {

// One result of a call, or an argument whose shape it changes.
struct Result {
  enum Kind : int8_t { FRESH, ARGUMENT, VIEW, OTHER, LIST } kind = OTHER;
  int alias = -1;                            // ARGUMENT and VIEW: which tensor on the device.
  c10::intrusive_ptr<c10::TensorImpl> like;  // FRESH and VIEW: sizes, strides, type.
  int storage = -1;                          // FRESH: which of the call's new storages.
  size_t num_bytes = 0;                      // Of that storage.
  c10::IValue value;                         // OTHER: no tensor, or one of the host's.
  std::vector<Result> list;
};
struct Results {
  std::vector<Result> returns;
  std::vector<Result> resized;               // Arguments that are written, with their new shapes.
  bool fit() const { return value_limits.fit(most_bytes, at::kFloat) && value_limits.fit(most_integer_bytes, at::kLong); }
  void count(const Result& made);
  size_t most_bytes = 0, most_integer_bytes = 0;  // Of one new storage.
};

// What comes of a call whose arguments are on the stack, as aliases; null: no kernel can tell.
std::shared_ptr<const Results> results_of(const OpInfo& info, const c10::OperatorHandle& op, const Stack& stack,
                                          size_t base, c10::ArrayRef<Alias> aliases);
// Refuses by name what cannot run without values.
inline void check_has_results(bool has_results, const c10::OperatorHandle& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(has_results, "simrank: '", op.schema().name(), "' cannot run without values: torch has no Meta "
                              "kernel for it, and not all of its inputs have values in this run");
}

// Puts on the stack what the results describe. New storages come from `make`, with a size in bytes.
template <typename Make>
class Giving {
 public:
  Giving(c10::ArrayRef<Alias> aliases, DispatchKey key, const Cause& cause, Make make)
      : aliases_(aliases), key_(key), cause_(cause), make_(make) {}
  void to(Stack* stack, size_t base, const Results& results) {
    stack->resize(base);
    for (auto& result : results.returns) stack->push_back(value(result));
    for (auto& alias : aliases_) if (alias.written) lose_values(alias.device, cause_);
  }
  c10::SmallVector<Tensor, 2> made;  // New tensors.

 private:
  c10::IValue value(const Result& result) {
    switch (result.kind) {
      case Result::ARGUMENT: return aliases_[result.alias].device;
      case Result::OTHER: return result.value;
      case Result::LIST: {
        c10::List<Tensor> list;
        for (auto& each : result.list) {
          const auto given = value(each);
          list.push_back(given.isTensor() ? given.toTensor() : Tensor());
        }
        return list;
      }
      case Result::VIEW: return Tensor(same_view(aliases_[result.alias].device.storage(), key_, *result.like));
      case Result::FRESH: break;
    }
    const size_t number = result.storage;
    if (storages_.size() <= number) storages_.resize(number + 1);
    if (!storages_[number]) {
      storages_[number] = make_(result.like->_is_zerotensor() ? 0 : result.num_bytes);  // Such a tensor has no memory.
      storages_[number].set_nbytes(result.num_bytes);
    }
    made.push_back(Tensor(same_view(storages_[number], key_, *result.like)));
    lose_values(made.back(), cause_);
    return made.back();
  }
  const c10::ArrayRef<Alias> aliases_;
  const DispatchKey key_;
  const Cause cause_;
  Make make_;
  std::vector<c10::Storage> storages_;
};

// Moves the generator on as the call's random numbers would, without drawing them.
void draw_nothing(const OpInfo& info, const c10::OperatorHandle& op, const Stack& stack, size_t base);
extern thread_local bool draws_nothing;
}  // namespace simrank
