// Operators on tensors of the host, while devices lack values: those of offloaded states, and of
// models that are built on the host at full size.
#include "shapes.h"
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

namespace simrank {

namespace {
// Assumed: floating-point tensors of the host above it are a model's, not a program's data.
constexpr size_t kHostValuesUpTo = 8 << 20;

class HostCall {
 public:
  HostCall(const OpInfo& info, const c10::OperatorHandle& op, Stack* stack)
      : info_(info), op_(op), stack_(stack), base_(stack->size() - info.arguments.size()) {}

  // False: it is computed as ever.
  bool run_without_values() {
    if (info_.is_view && info_.name != "resize_") return false;
    for (size_t i = 0; i < info_.arguments.size(); i++) take((*stack_)[base_ + i], i);
    if (is_known_ && has_room_) {
      for (auto& alias : aliases_) if (alias.written) write_host_values(alias.device);
      return false;
    }
    if (info_.reads_host || reads_mask_) return read();
    for (auto& alias : aliases_)
      TORCH_CHECK(!alias.written || can_lose_values(alias.device), "simrank: ", info_.name, " writes what has no values in a run "
                  "without data to memory of the host that torch has not allocated on this rank");
    const Cause cause{info_.name.c_str(), site_of_caller()};
    const auto results = results_of(info_, op_, *stack_, base_, aliases_);
    check_has_results(results != nullptr, op_);
    Giving giving(aliases_, DispatchKey::CPU, cause, [](size_t size) { return c10::Storage(host_storage(size)); });
    giving.to(stack_, base_, *results);
    for (auto& resized : results->resized) {
      auto* impl = aliases_[resized.alias].device.unsafeGetTensorImpl();
      if (resized.num_bytes > impl->unsafe_storage().nbytes()) {
        auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
        storage->set_data_ptr_noswap(storage->allocator()->allocate(resized.num_bytes));
        storage->set_nbytes(resized.num_bytes);
      }
      impl->set_sizes_and_strides(resized.like->sizes(), resized.like->strides(), impl->storage_offset());
      lose_values(aliases_[resized.alias].device, cause);
    }
    return true;
  }

 private:
  void take(const c10::IValue& value, size_t i) {
    if (value.isTensor()) take(value.toTensor(), i);
    else if (value.isTensorList()) for (const Tensor& tensor : value.toTensorList()) take(tensor, i);
    else if (value.isOptionalTensorList())
      for (std::optional<Tensor> tensor : value.toOptionalTensorList()) {
        if (!tensor || !tensor->defined()) continue;
        reads_mask_ = reads_mask_ || is_mask(*tensor);
        take(*tensor, i);
      }
  }
  void take(const Tensor& tensor, size_t i) {
    if (!tensor.defined() || !tensor.is_cpu() || tensor.layout() != at::kStrided || !tensor.has_storage()) return;
    const bool is_written = info_.writes[i], is_overwritten = info_.overwrites[i];
    if (!is_overwritten) is_known_ = is_known_ && is_known(tensor);
    const size_t size = tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
    if (is_written && !c10::isIntegralType(tensor.scalar_type(), true) && size > kHostValuesUpTo && can_lose_values(tensor))
      has_room_ = false;
    if (tensor.dim() || is_written || !is_known(tensor))  // Else a number, as Meta kernels take it.
      aliases_.push_back({tensor, tensor, is_written, is_overwritten});
  }

  bool read() {
    if (info_.name == "_local_scalar_dense") {
      const auto number = ask_for_number(info_.name.c_str(), aliases_[0].device);
      stack_->resize(base_);
      stack_->push_back(number);
      return true;
    }
    for (auto& alias : aliases_) {
      if (alias.overwritten || is_known(alias.device)) continue;
      assume(alias.device, at::full({}, ask_for_value(info_.name.c_str(), alias.device), at::kDouble));
    }
    return false;
  }

  const OpInfo& info_;
  const c10::OperatorHandle& op_;
  Stack* stack_;
  const size_t base_;
  c10::SmallVector<Alias, 8> aliases_;
  bool is_known_ = true, has_room_ = true, reads_mask_ = false;
};

struct HostKernelBefore final : c10::OperatorKernel {
  HostKernelBefore(const OpInfo& info, c10::SafeKernelFunction before) : info(info), before(std::move(before)) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (!computes_for_host() || !bound_rank() || !HostCall(info, op, stack).run_without_values())
      before.callBoxed(op, keys, stack);
  }
  const OpInfo& info;
  const c10::SafeKernelFunction before;
};

std::unique_ptr<torch::Library> host_library;
}  // namespace

void register_host_kernels() {
  if (host_library) return;
  const Unwarned unwarned;  // Kernels are replaced on purpose.
  host_library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", std::make_optional(DispatchKey::CPU),
                                                  __FILE__, __LINE__);
  auto names = c10::Dispatcher::singleton().getRegistrationsForDispatchKey(DispatchKey::CPU);
  names.push_back({"aten::copy_", ""});  // One kernel for all kinds of devices, which reads memory itself.
  for (auto& name : names) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0) continue;
    const OpInfo& info = info_of(*op);
    auto text = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    host_library->impl(text.c_str(), torch::CppFunction::makeFromBoxedKernel(c10::BoxedKernel::makeFromFunctor(
        std::make_unique<HostKernelBefore>(info, op->getComputedKernelForDispatchKey(DispatchKey::CPU)))));
  }
}
void forget_host_kernels() { host_library.reset(); }
}  // namespace simrank
