#include "shapes.h"
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace simrank {

thread_local bool draws_nothing = false;

namespace {
const c10::StorageImpl* storage_impl(const Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Words that tell one form of a call from another.
class FormKey {
 public:
  std::string words;
  bool is_whole = true;  // False: it holds what no word tells.
  void add(int64_t word) { words.append(reinterpret_cast<const char*>(&word), sizeof word); }
  void add(const c10::IValue& value) {
    if (value.isTensor()) return add(value.toTensor());
    if (value.isNone()) return add(kNone);
    if (value.isBool()) { add(kBool); return add(static_cast<int64_t>(value.toBool())); }
    if (value.isInt()) { add(kInt); return add(value.toInt()); }
    if (value.isDouble()) { add(kDouble); return add(c10::bit_cast<int64_t>(value.toDouble())); }
    if (value.isComplexDouble()) {
      add(kDouble);
      add(c10::bit_cast<int64_t>(value.toComplexDouble().real()));
      return add(c10::bit_cast<int64_t>(value.toComplexDouble().imag()));
    }
    if (value.isDevice()) { add(kDevice); return add(static_cast<int64_t>(value.toDevice().type())); }
    if (value.isString()) { add(static_cast<int64_t>(value.toStringRef().size())); words += value.toStringRef(); return; }
    if (value.isGenerator()) return add(kGenerator);
    if (value.isList()) {
      const auto list = value.toListRef();
      add(kList);
      add(static_cast<int64_t>(list.size()));
      for (auto& each : list) add(each);
      return;
    }
    is_whole = false;
  }

 private:
  enum Tag : int64_t { kNone = -1, kBool = -2, kInt = -3, kDouble = -4, kDevice = -5, kGenerator = -6, kList = -7,
                       kTensor = -8, kUndefined = -9 };
  void add(Tag tag) { add(static_cast<int64_t>(tag)); }
  void add(const Tensor& tensor) {
    if (!tensor.defined()) return add(kUndefined);
    if (tensor.layout() != at::kStrided || !tensor.has_storage()) { is_whole = false; return; }
    add(kTensor);
    const auto* impl = tensor.unsafeGetTensorImpl();
    const auto* storage = storage_impl(tensor);
    add(static_cast<int64_t>(tensor.scalar_type()) | static_cast<int64_t>(tensor.dim()) << 8 |
        static_cast<int64_t>(impl->is_wrapped_number()) << 24 | static_cast<int64_t>(impl->is_conj()) << 25 |
        static_cast<int64_t>(impl->is_neg()) << 26 | static_cast<int64_t>(tensor._is_zerotensor()) << 27 |
        static_cast<int64_t>(storages_.size()) << 32);
    for (auto size : tensor.sizes()) add(size);
    for (auto stride : tensor.strides()) add(stride);
    size_t number = 0;
    while (number < storages_.size() && storages_[number] != storage) ++number;
    if (number == storages_.size()) storages_.push_back(storage);
    add(static_cast<int64_t>(number));
    add(tensor.storage_offset());
    add(static_cast<int64_t>(storage->nbytes()));
  }
  c10::SmallVector<const c10::StorageImpl*, 8> storages_;
};

// The arguments of a call as torch's Meta kernels take them.
class MetaCall {
 public:
  // `takes_numbers`: tensors of the host without dimensions stay as they are.
  MetaCall(const Stack& stack, size_t base, c10::ArrayRef<Alias> aliases, bool takes_numbers = true)
      : takes_numbers_(takes_numbers), aliases_(aliases), metas_(aliases.size()),
        stack_(stack.begin() + base, stack.end()) {
    for (auto& value : stack_) value = described(value);
  }
  bool run(const OpInfo& info, const c10::OperatorHandle& op) {
    const Stack arguments = stack_;
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    NoTorchFunction no_torch_function;  // torch's Meta kernels in Python make tensors.
    ComputingFor nobody;
    if (op.hasComputedKernelForDispatchKey(DispatchKey::Meta)) {
      try {
        op.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &stack_);
        return true;
      } catch (const c10::NotImplementedError&) {
        stack_ = arguments;
      }
    }
    if (run_without_outputs(op, arguments)) return true;
    if (op.schema().returns().empty()) { stack_.clear(); return true; }  // It writes arguments: their shapes stay.
    stack_ = arguments;
    if (!info.kernel) return false;
    try {
      info.kernel->callBoxed(op, DispatchKeySet(DispatchKey::Meta), &stack_);
    } catch (const c10::NotImplementedError&) {
      return false;
    }
    return true;
  }
  void run_ours(const OpInfo& info, const c10::OperatorHandle& op) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ComputingFor nobody;
    info.kernel->callBoxed(op, DispatchKeySet(DispatchKey::Meta), &stack_);
  }
  std::shared_ptr<Results> results() const {
    auto made = std::make_shared<Results>();
    std::vector<const c10::StorageImpl*> fresh;
    for (auto& value : stack_) made->returns.push_back(result(value, fresh, *made));
    for (size_t i = 0; i < aliases_.size(); i++) {
      if (!aliases_[i].written || !metas_[i].defined()) continue;
      auto *now = metas_[i].unsafeGetTensorImpl(), *before = aliases_[i].device.unsafeGetTensorImpl();
      if (now->sizes() == before->sizes() && now->strides() == before->strides()) continue;
      Result resized;
      resized.alias = static_cast<int>(i);
      resized.like = metas_[i].getIntrusivePtr();
      resized.num_bytes = now->unsafe_storage().nbytes();
      made->count(resized);
      made->resized.push_back(std::move(resized));
    }
    return made;
  }

 private:
  // For an overload with outputs that has no Meta kernel: that of the one which makes them.
  bool run_without_outputs(const c10::OperatorHandle& op, const Stack& arguments) {
    const auto& schema = op.schema();
    const auto& declared = schema.arguments();
    size_t num_inputs = declared.size();
    while (num_inputs > 0 && declared[num_inputs - 1].is_out()) --num_inputs;
    if (num_inputs == declared.size()) return false;
    std::string overload = schema.overload_name();
    if (overload.size() < 3 || overload.compare(overload.size() - 3, 3, "out") != 0) return false;
    overload.resize(overload.size() - (overload.size() > 3 ? 4 : 3));  // "dtype_out" or "out".
    const auto maker = c10::Dispatcher::singleton().findSchema({schema.name(), overload});
    if (!maker || maker->schema().arguments().size() != num_inputs ||
        !maker->hasComputedKernelForDispatchKey(DispatchKey::Meta)) return false;
    stack_.assign(arguments.begin(), arguments.begin() + num_inputs);
    try {
      maker->redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &stack_);
    } catch (const c10::NotImplementedError&) {
      return false;
    }
    if (stack_.size() != declared.size() - num_inputs) return false;
    for (size_t i = 0; i < stack_.size(); i++) {
      if (!stack_[i].isTensor() || !arguments[num_inputs + i].isTensor()) return false;
      const Tensor& output = arguments[num_inputs + i].toTensor();
      const auto sizes = stack_[i].toTensor().sizes();
      if (output.sizes() != sizes) output.resize_(sizes);
      stack_[i] = output;
    }
    return true;
  }
  struct NoTorchFunction {
    at::impl::TorchFunctionDisabledState before = at::impl::PythonTorchFunctionTLS::get_disabled_state();
    NoTorchFunction() { at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED); }
    ~NoTorchFunction() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before); }
  };
  c10::IValue described(const c10::IValue& value) {
    if (value.isTensor()) return described(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorList()) list.push_back(described(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (std::optional<Tensor> tensor : value.toOptionalTensorList())
        list.push_back(tensor && tensor->defined() ? std::optional<Tensor>(described(*tensor)) : tensor);
      return list;
    }
    if (value.isDevice()) return c10::IValue(Device(c10::kMeta));
    return value;
  }
  Tensor described(const Tensor& host) {
    if (!host.defined() || !host.has_storage()) return host;
    int alias = -1;
    for (size_t i = 0; i < aliases_.size(); i++) if (aliases_[i].host.is_same(host)) alias = static_cast<int>(i);
    if (alias < 0 && host.dim() == 0 && takes_numbers_) return host;
    if (alias >= 0 && metas_[alias].defined()) return metas_[alias];
    const auto* storage = storage_impl(host);
    c10::Storage* shared = nullptr;
    for (auto& [of, made] : storages_) if (of == storage) shared = &made;
    if (!shared) {
      storages_.emplace_back(storage, c10::Storage(c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), storage->nbytes(), c10::DataPtr(nullptr, Device(c10::kMeta)),
          c10::GetAllocator(c10::kMeta), true)));
      shared = &storages_.back().second;
    }
    Tensor meta(same_view(*shared, DispatchKey::Meta, *host.unsafeGetTensorImpl()));
    if (alias >= 0) metas_[alias] = meta;
    return meta;
  }
  Result result(const c10::IValue& value, std::vector<const c10::StorageImpl*>& fresh, Results& all) const {
    Result made;
    if (value.isTensorList()) {
      made.kind = Result::LIST;
      for (const Tensor& tensor : value.toTensorList()) made.list.push_back(result(c10::IValue(tensor), fresh, all));
      return made;
    }
    made.value = value;
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage()) return made;
    const Tensor& tensor = value.toTensor();
    made.like = tensor.getIntrusivePtr();
    for (size_t i = 0; i < metas_.size(); i++) {
      if (!metas_[i].defined() || storage_impl(metas_[i]) != storage_impl(tensor)) continue;
      made.kind = metas_[i].is_same(tensor) ? Result::ARGUMENT : Result::VIEW;
      made.alias = static_cast<int>(i);
      if (made.kind == Result::ARGUMENT) break;
    }
    made.value = {};
    if (made.alias >= 0) return made;
    made.kind = Result::FRESH;
    made.num_bytes = storage_impl(tensor)->nbytes();
    const auto found = std::find(fresh.begin(), fresh.end(), storage_impl(tensor));
    made.storage = static_cast<int>(found - fresh.begin());
    if (found == fresh.end()) fresh.push_back(storage_impl(tensor));
    all.count(made);
    return made;
  }

  const bool takes_numbers_;
  const c10::ArrayRef<Alias> aliases_;
  std::vector<Tensor> metas_;  // By alias.
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
  Stack stack_;  // The arguments, then what the call returns.
};
std::unordered_map<std::string, std::shared_ptr<const Results>> results_by_form;
std::mutex results_mutex;  // A program's own threads do not take turns.
}  // namespace

void Results::count(const Result& made) {
  auto& most = c10::isIntegralType(c10::typeMetaToScalarType(made.like->dtype()), true) ? most_integer_bytes : most_bytes;
  most = std::max(most, made.num_bytes);
}

namespace {
// Masks whose values are there as the indices that they stand for: shapes depend on how many they are.
c10::IValue without_masks(const c10::IValue& indices, c10::ArrayRef<Alias> aliases) {
  c10::List<std::optional<Tensor>> list;
  for (std::optional<Tensor> index : indices.toOptionalTensorList()) {
    bool is_there = index && index->defined() && is_mask(*index);
    for (auto& alias : aliases) if (is_there && alias.host.is_same(*index)) is_there = is_known(alias.device);
    if (!is_there) { list.push_back(index); continue; }
    ComputingFor nobody;
    for (const Tensor& column : index->nonzero().unbind(1)) list.push_back(column.contiguous());
  }
  return list;
}
}  // namespace

std::shared_ptr<const Results> results_of(const OpInfo& info, const c10::OperatorHandle& op, const Stack& given,
                                          size_t base, c10::ArrayRef<Alias> aliases) {
  Stack stack(given.begin() + base, given.end());
  base = 0;
  for (size_t i = 0; i < stack.size(); i++)
    if (info.arguments[i] == Argument::OPTIONAL_TENSORS && stack[i].isList()) stack[i] = without_masks(stack[i], aliases);
  FormKey key;
  key.add(static_cast<int64_t>(info.id));
  key.add(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  for (size_t i = base; i < stack.size(); i++) key.add(stack[i]);
  if (key.is_whole) {
    std::lock_guard<std::mutex> lock(results_mutex);
    auto found = results_by_form.find(key.words);
    if (found != results_by_form.end()) return found->second;
  }
  MetaCall call(stack, base, aliases);
  std::shared_ptr<const Results> made = call.run(info, op) ? call.results() : nullptr;
  if (key.is_whole) {
    std::lock_guard<std::mutex> lock(results_mutex);
    results_by_form.emplace(std::move(key.words), made);
  }
  return made;
}

void draw_nothing(const OpInfo& info, const c10::OperatorHandle& op, const Stack& stack, size_t base) {
  struct Drawing {
    Drawing() { draws_nothing = true; }
    ~Drawing() { draws_nothing = false; }
  } drawing;
  MetaCall call(stack, base, {}, false);
  call.run_ours(info, op);
}
}  // namespace simrank
