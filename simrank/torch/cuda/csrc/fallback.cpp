#include "fallback.h"
#include "generator.h"
#include "shapes.h"
#include <ATen/Context.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <cmath>
#include <cstring>
#include <mutex>
#include <c10/core/DeviceGuard.h>
#include <string_view>
#include <torch/library.h>
#include <unordered_map>
#include <unordered_set>

namespace simrank {

c10::intrusive_ptr<c10::TensorImpl> same_view(c10::Storage storage, DispatchKey key,
                                              const c10::TensorImpl& of) {
  DispatchKeySet keys(key);
  if (of._is_zerotensor()) keys = keys.add(DispatchKey::ZeroTensor);
  auto made = c10::make_intrusive<c10::TensorImpl>(std::move(storage), keys, of.dtype());
  made->set_sizes_and_strides(of.sizes(), of.strides(), of.storage_offset());
  if (of.is_wrapped_number()) made->set_wrapped_number(true);
  if (of.is_conj()) made->_set_conj(true);
  if (of.is_neg()) made->_set_neg(true);
  return made;
}

namespace {
thread_local DeviceIndex computing = 0;

c10::Storage host_storage_of(const Tensor& tensor) {
  auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (auto* host = host_of(storage))
    return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(host));
  // Memory that came from elsewhere (from_blob, dlpack) is the host's all the same.
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage->nbytes(),
      c10::DataPtr(const_cast<void*>(storage->data()), c10::kCPU), nullptr, false));
}
}  // namespace

DeviceIndex computing_index() { return computing; }
OnIndex::OnIndex(DeviceIndex index) : before(std::exchange(computing, index)) {}
OnIndex::~OnIndex() { computing = before; }

at::SparseTensorImpl* sparse_impl(const Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}
Tensor sparse_of(DispatchKey key, const Tensor& like, const Tensor& indices, const Tensor& values) {
  const c10::OptionalDeviceGuard there(values.device());  // The constructor takes the current device.
  auto made = c10::make_intrusive<at::SparseTensorImpl>(DispatchKeySet(key), like.dtype());
  made->raw_resize_(sparse_impl(like)->sparse_dim(), sparse_impl(like)->dense_dim(), like.sizes());
  made->set_indices_and_values_unsafe(indices, values);
  made->set_coalesced(sparse_impl(like)->coalesced());
  return Tensor(std::move(made));
}

Tensor host_alias(const Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.has_storage())
    TORCH_CHECK_NOT_IMPLEMENTED(false, "simrank: ", tensor.layout(),
                                " tensors on simulated CUDA devices are not supported");
  return Tensor(same_view(host_storage_of(tensor), DispatchKey::CPU, *tensor.unsafeGetTensorImpl()));
}

namespace {
Tensor device_view(const c10::Storage& storage, const Tensor& host) {
  return Tensor(same_view(storage, DispatchKey::CUDA, *host.unsafeGetTensorImpl()));
}

// Computes in fp32 and rounds once, where CPU torch's kernel of a half type does not.
class InFloat {
 public:
  InFloat(const OpInfo& info, Stack* stack) : info_(info), stack_(stack) {
    const size_t base = stack->size() - info.arguments.size();
    for (size_t i = 0; i < info.arguments.size(); i++) {
      auto& value = (*stack)[base + i];
      if (value.isTensor()) value = up(value.toTensor(), info.writes[i]);
      else if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& t : value.toTensorList()) list.push_back(up(t, info.writes[i]));
        value = std::move(list);
      }
    }
  }
  void round_results(size_t num_returns) {
    for (auto& [narrow, wide] : written_) narrow.resize_(wide.sizes()).copy_(wide);
    const size_t base = stack_->size() - num_returns;
    for (size_t i = 0; i < num_returns; i++) {
      auto& value = (*stack_)[base + i];
      if (value.isTensor() && type_) value = down(value.toTensor(), i);
    }
  }

 private:
  Tensor up(const Tensor& tensor, bool is_written) {
    if (!is_half(tensor)) return tensor;
    type_ = tensor.scalar_type();
    Tensor wide = tensor.to(at::kFloat);
    if (is_written) written_.emplace_back(tensor, wide);
    return wide;
  }
  Tensor down(const Tensor& tensor, size_t index) {
    for (auto& [narrow, wide] : written_) if (wide.is_same(tensor)) return narrow;
    bool stays = info_.float_returns >> index & 1;
    if (stays || !tensor.defined() || tensor.scalar_type() != at::kFloat) return tensor;
    return tensor.to(*type_);
  }
  const OpInfo& info_;
  Stack* stack_;
  std::optional<at::ScalarType> type_;
  std::vector<std::pair<Tensor, Tensor>> written_;
};

bool has_half_argument(const OpInfo& info, const Stack& stack) {
  const size_t base = stack.size() - info.arguments.size();
  for (size_t i = 0; i < info.arguments.size(); i++) {
    auto& value = stack[base + i];
    if (value.isTensor() && is_half(value.toTensor())) return true;
    if (value.isTensorList())
      for (const Tensor& t : value.toTensorList()) if (is_half(t)) return true;
  }
  return false;
}

bool has_fast_products(at::ScalarType type) {
  static const auto asks = [](const char* name) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
    Stack stack;
    if (op) op->callBoxed(stack);
    return !stack.empty() && stack[0].toBool();
  };
  static const bool of_bfloat16 = asks("mkldnn::_is_mkldnn_bf16_supported");
  static const bool of_half = asks("mkldnn::_is_mkldnn_fp16_supported");
  return type == at::kBFloat16 ? of_bfloat16 : of_half;
}

// Whether a product of a half type takes CPU torch longer than in fp32, with the conversions: without
// instructions for it, it multiplies rows that lie side by side one by one, and others far more slowly.
bool is_slow_product(const OpInfo& info, const Stack& stack) {
  constexpr int64_t kWorthwhile = 8, kWorthwhileOfRows = 2;  // Multiplications per element; measured.
  const size_t first = stack.size() - info.arguments.size() + (info.name.find("add") != std::string::npos);
  const auto &a = stack[first], &b = stack[first + 1];
  if (!a.isTensor() || !b.isTensor() || !is_half(a.toTensor())) return false;
  const auto &x = a.toTensor(), &y = b.toTensor();
  if (x.dim() < 2 || y.dim() < 2 || has_fast_products(x.scalar_type())) return false;
  const int64_t m = x.size(-2), k = x.size(-1), n = y.size(-1);
  const bool is_of_rows = x.stride(-1) == 1 && y.stride(-1) == 1;
  return m * k * n >= (is_of_rows ? kWorthwhileOfRows : kWorthwhile) * (m * k + k * n + m * n);
}

bool is_in_float(const OpInfo& info, const Stack& stack) {
  return (info.in_float && has_half_argument(info, stack)) || (info.is_product && is_slow_product(info, stack));
}
}  // namespace

Purpose purpose_of(const OpInfo& info, const Stack& stack) {
  return is_in_float(info, stack) ? Purpose::SCRATCH : info.purpose;
}

void compute(const OpInfo& info, const c10::OperatorHandle& op, Stack* stack, DispatchKeySet keys) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(DispatchKeySet(DispatchKey::AutocastCPU));
  std::optional<InFloat> in_float;
  if (is_in_float(info, *stack)) in_float.emplace(info, stack);
  if (info.kernel) info.kernel->callBoxed(op, keys, stack);
  else op.redispatchBoxed(keys, stack);
  if (in_float) in_float->round_results(op.schema().returns().size());
}

namespace {
class Call {
 public:
  Call(const OpInfo& info, const c10::OperatorHandle& op, Stack* stack, DispatchKeySet keys)
      : info_(info), op_(op), stack_(stack), keys_(keys), rank_(rank()),
        base_(stack->size() - info.arguments.size()) {
    rank_.is_initialized = true;
  }

  void run() {
    take_arguments();
    if (C10_UNLIKELY(lacks_values) && run_without_values()) return;
    if (info_.reads_host || reads_host_) read_by_host();
    note_choices();
    Stack arguments;
    const bool is_captured = rank_.capturing && !rank_.is_computing;
    if (C10_UNLIKELY(is_captured)) arguments = begin_capture();
    std::shared_ptr<const Results> expected;
    if (C10_UNLIKELY(info_.is_laid_out_by_meta)) expected = results_of(info_, op_, *stack_, base_, aliases_);
    compute_here();
    if (C10_UNLIKELY(expected != nullptr)) lay_out_as(*expected);
    for (auto& alias : aliases_) if (alias.written) follow(alias);
    give_results();
    if (C10_UNLIKELY(lacks_values)) note_known();
    if (C10_UNLIKELY(is_recording) && !info_.is_view) record();
    if (C10_UNLIKELY(is_captured)) capture(std::move(arguments));
  }

 private:
  void take_arguments() {
    for (size_t i = 0; i < info_.arguments.size(); i++) {
      auto& value = (*stack_)[base_ + i];
      switch (info_.arguments[i]) {
        case Argument::TENSOR:
          if (value.isTensor()) value = take(value.toTensor(), i);
          break;
        case Argument::TENSORS:
          if (value.isTensorList()) take_list(value, i);
          break;
        case Argument::OPTIONAL_TENSORS:
          if (value.isList()) take_indices(value, i);
          break;
        case Argument::DEVICE:
          if (value.isDevice() && value.toDevice().is_cuda()) {
            device_ = device_or_current(value.toDevice().index());
            value = Device(c10::kCPU);
          }
          break;
        case Argument::GENERATOR:
          generator_at_ = static_cast<int>(i);
          break;
        case Argument::OTHER:
          break;
      }
    }
    if (device_ < 0) device_ = rank_.current;
    if (generator_at_ >= 0) take_generator();
  }

  void take_list(c10::IValue& value, size_t i) {
    c10::List<Tensor> taken;
    for (const Tensor& tensor : value.toTensorList()) taken.push_back(take(tensor, i));
    value = std::move(taken);
  }

  void take_indices(c10::IValue& value, size_t i) {
    const bool self_on_host = aliases_.empty() && (*stack_)[base_].isTensor();
    c10::List<std::optional<Tensor>> taken;
    for (std::optional<Tensor> index : value.toOptionalTensorList()) {
      const bool on_device = index && index->defined() && index->is_cuda();
      TORCH_CHECK(!(on_device && self_on_host), "indices should be either on cpu or on the same "
                  "device as the indexed tensor (cpu)");
      // CUDA counts a mask's ones on the host, unless one value goes wherever the mask is set.
      reads_host_ = reads_host_ || (on_device && is_mask(*index) && !writes_one_value());
      taken.push_back(on_device ? std::optional<Tensor>(take(*index, i)) : index);
    }
    value = std::move(taken);
  }

  bool writes_one_value() const {
    constexpr size_t kValues = 2;  // _index_put_impl_(self, indices, values, ...)
    if (!info_.writes[0] || info_.arguments.size() <= kValues) return false;
    const auto& values = (*stack_)[base_ + kValues];
    return values.isTensor() && values.toTensor().numel() == 1;
  }

  Tensor take(const Tensor& tensor, size_t i) {
    if (!tensor.defined()) return tensor;
    check_device(tensor, i);
    if (!tensor.is_cuda()) {
      hosts_.push_back(tensor.unsafeGetTensorImpl());
      return tensor;
    }
    if (device_ < 0) device_ = tensor.device().index();
    return alias(tensor, info_.writes[i], info_.overwrites[i]);
  }

  Tensor alias(const Tensor& tensor, bool written, bool overwritten = false) {
    if (tensor.layout() == at::kSparse) {
      auto* impl = sparse_impl(tensor);
      const Tensor indices = alias(impl->indices(), false), values = alias(impl->values(), written);
      aliases_.push_back({tensor, sparse_of(DispatchKey::SparseCPU, tensor, indices, values), written, false});
    } else {
      wait_for_pending(tensor, written);
      aliases_.push_back({tensor, host_alias(tensor), written, overwritten});
    }
    return aliases_.back().host;
  }

  void check_device(const Tensor& tensor, size_t i) {
    if (info_.check == DeviceCheck::NONE) return;
    const bool is_host_scalar =
        info_.check == DeviceCheck::ITERATOR && tensor.is_cpu() && tensor.dim() == 0;
    if (is_host_scalar || !(tensor.is_cpu() || tensor.is_cuda())) return;
    if (!common_) { common_ = tensor.device(); return; }
    if (*common_ == tensor.device()) return;
    if (info_.check == DeviceCheck::EXACT)
      c10::impl::common_device_check_failure(*common_, tensor, info_.wrapper.c_str(),
                                             op_.schema().arguments()[i].name().c_str());
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two "
                "devices, ", *common_, " and ", tensor.device(), "!");
  }

  void take_generator() {
    auto& value = (*stack_)[base_ + generator_at_];
    std::optional<at::Generator> given;
    if (value.isGenerator()) given = value.toGenerator();
    auto& philox = philox_of(given, static_cast<DeviceIndex>(device_));
    if (info_.kernel) return;
    constexpr uint64_t kAssumedWords = 4;
    value = philox.for_host(kAssumedWords);
  }

  void read_by_host() {
    refuse_in_capture();
    stream_call(HOST_READ, device_, rank_.streams[device_]);
  }
  void refuse_in_capture() {
    if (!rank_.capturing) return;
    constexpr int kCudaErrorStreamCaptureUnsupported = 900;
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                kCudaErrorStreamCaptureUnsupported,
                                "CUDA error: operation not permitted when stream is capturing");
  }

  void compute_here() {
    if (info_.is_copy) begin_copy();
    ComputingFor here(rank_.first_device + device_, rank_.streams[device_], promotes() ? Purpose::SCRATCH : purpose_of(info_, *stack_));
    OnIndex on_index(static_cast<DeviceIndex>(device_));
    struct Nested {
      Rank& rank;
      bool before;
      ~Nested() { rank.is_computing = before; }
    } nested{rank_, std::exchange(rank_.is_computing, true)};
    compute(info_, op_, stack_, keys_);
  }

  // Whether types are mixed: CPU torch converts into temporaries.
  bool promotes() const {
    for (auto& alias : aliases_) if (alias.device.scalar_type() != aliases_[0].device.scalar_type()) return true;
    return false;
  }

  void note_choices() {
    if (info_.causal_at >= 0 && (*stack_)[base_ + info_.causal_at].toBool()) flags_ |= CAUSAL;
    if (info_.causal_at >= 0 && at::globalContext().userEnabledCuDNNSDP()) flags_ |= CUDNN;
    if ((info_.is_product || info_.is_convolution) && rounds_to_tf32()) flags_ |= TF32;
  }

  // ---- without values

  // False: all that is read has values, what is written has room for them, and all is computed.
  bool run_without_values() {
    if (info_.is_view && info_.name != "resize_") return false;
    bool is_known = true, has_room = true;
    for (auto& alias : aliases_) {
      if (alias.device.layout() != at::kStrided) { is_sparse_ = true; continue; }
      if (!alias.overwritten) is_known = is_known && simrank::is_known(alias.device);
      if (alias.written) has_room = has_room && may_have_values(alias.device);
    }
    for (auto* host : hosts_) is_known = is_known && (is_overwritten(host) || simrank::is_known(tensor_of(host)));
    if (info_.reads_host || reads_host_) return read_without_values(is_known && has_room);
    if (info_.is_copy && hosts_.size()) return copy_across(is_known && has_room);
    std::shared_ptr<const Results> results;
    if (!(is_known && has_room && info_.makes_nothing)) {
      results = is_sparse_ ? nullptr : results_of(info_, op_, *stack_, base_, aliases_);
      check_has_results(results || is_known, op_);
    }
    if (is_known && has_room && (!results || results->fit())) return make_room();
    if (!is_known && has_room && info_.only_moves && results->fit() && follow_elements()) return make_room();
    note_choices();
    const bool is_captured = rank_.capturing && !rank_.is_computing;
    Stack arguments;
    if (C10_UNLIKELY(is_captured)) arguments = begin_capture();
    if (info_.draws) draw();
    give(*results, cause());
    if (C10_UNLIKELY(is_recording) && !info_.is_view) record();
    if (C10_UNLIKELY(is_captured)) capture(std::move(arguments), false);
    return true;
  }

  Stack begin_capture() {
    for (auto& alias : aliases_) if (alias.written) rank_.capturing->keep_as_it_was(alias.device);
    return Stack(stack_->begin() + base_, stack_->end());
  }

  // Where an operator only moves elements, those that are unknown are moved too: it is run on what
  // says which they are. False: there is too much of them.
  bool follow_elements() {
    Stack stack(stack_->begin() + base_, stack_->end());
    const auto flags_of = [this](const Tensor& host) -> Tensor {
      for (auto& alias : aliases_) if (alias.host.is_same(host)) return unknown_elements(alias.device);
      return at::zeros(host.sizes(), at::kBool);
    };
    for (auto& alias : aliases_) if (!may_have_values(alias.device)) return false;
    for (auto& alias : aliases_) open_pages(alias.device);  // Also where nothing was known so far.
    ComputingFor nobody;
    for (auto& value : stack) {
      if (value.isTensor()) value = flags_of(value.toTensor());
      else if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& tensor : value.toTensorList()) list.push_back(flags_of(tensor));
        value = std::move(list);
      }
    }
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    op_.redispatchBoxed(kDense, &stack);
    unknown_results_ = stack.back().toTensor();
    return true;
  }

  bool make_room() {
    for (auto& alias : aliases_) if (alias.written && !is_sparse_) open_pages(alias.device);
    return false;
  }
  void note_known() {
    for (auto& alias : aliases_) if (alias.written && !is_sparse_) regain_values(alias.device);
    if (unknown_results_.defined()) lose_elements(stack_->back().toTensor(), unknown_results_, cause());
  }
  Cause cause() const {
    const char* verdict = verdict_on_numbers();
    return {verdict ? verdict : info_.name.c_str(), site_of_caller()};
  }

  // What the result says of numbers, if it says whether they are finite: a check of them, as torch
  // spells it out too (x == x, abs(x) != inf), or something that passes such booleans on.
  const char* verdict_on_numbers() const {
    const std::string_view base = std::string_view(info_.name).substr(0, info_.name.find('.'));
    if (base == "isnan" || base == "isinf" || base == "isposinf" || base == "isneginf") return kBroken;
    const bool is_equal = base == "eq";
    if (is_equal || base == "ne") {
      const auto& other = (*stack_)[base_ + 1];
      if (other.isScalar() && other.toScalar().isFloatingPoint() && std::isinf(other.toScalar().toDouble()))
        return is_equal ? kBroken : kFinite;
      if (other.isTensor() && aliases_.size() > 1 && is_same_view(aliases_[0].device, aliases_[1].device))
        return is_equal ? kFinite : kBroken;
      return nullptr;
    }
    if (aliases_.empty() || aliases_[0].device.scalar_type() != at::kBool || !passes_booleans(base)) return nullptr;
    const char* found = nullptr;
    for (auto& alias : aliases_) {
      if (alias.overwritten) continue;
      const auto before = unknown_cause(alias.device);
      if (!before || !is_verdict(before->op) || (found && found != before->op)) return nullptr;
      found = before->op;
    }
    const bool is_not = base == "logical_not" || base == "bitwise_not";
    return !found || !is_not ? found : found == kBroken ? kFinite : kBroken;
  }
  static bool is_same_view(const Tensor& a, const Tensor& b) {
    return a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides();
  }
  static bool passes_booleans(std::string_view base) {
    for (const char* name : {"any", "all", "logical_not", "bitwise_not", "logical_or", "logical_and", "bitwise_or",
                             "bitwise_and", "mul", "copy_", "_to_copy", "clone", "amax", "amin", "max", "min", "stack", "cat"})
      if (base == name || (base.size() == std::strlen(name) + 1 && base.back() == '_' && base.substr(0, base.size() - 1) == name)) return true;
    return false;
  }

  void draw() {
    OnIndex on_index(static_cast<DeviceIndex>(device_));
    draw_nothing(info_, op_, *stack_, base_);
  }

  // What decides shapes or goes to the host must have values, or a default that the user has stated.
  bool read_without_values(bool is_known) {
    if (is_known) return make_room();
    read_by_host();
    if (info_.name == "_local_scalar_dense") {
      const auto number = ask_for_number(info_.name.c_str(), aliases_[0].device);
      stack_->resize(base_);
      stack_->push_back(number);
      if (C10_UNLIKELY(is_recording)) record();
      return true;
    }
    const bool writes = !info_.writes.empty() && info_.writes[0];
    bool is_lost = false;
    for (size_t i = 0; i < aliases_.size(); i++) {
      auto& alias = aliases_[i];
      if (alias.overwritten || simrank::is_known(alias.device)) continue;
      const bool decides = reads_host_ ? is_mask(alias.device) : info_.name.rfind("masked_select", 0) != 0 || i == 1;
      is_lost = is_lost || !decides;
      const double value = decides ? ask_for_value(info_.name.c_str(), alias.device) : 0;
      if (!writes) replace(alias.host, at::full({}, value, alias.host.options()).expand(alias.host.sizes()));
    }
    if (writes) {  // In place: no shape depends on it.
      give(*results_of(info_, op_, *stack_, base_, aliases_), cause());
    } else {
      compute_here();
      give_results();
      if (is_lost) for (auto& output : outputs_) lose_values(output, cause());
    }
    if (C10_UNLIKELY(is_recording)) record();
    return true;
  }

  void replace(const Tensor& before, const Tensor& now) {
    for (size_t i = base_; i < stack_->size(); i++) {
      auto& value = (*stack_)[i];
      if (value.isTensor() && value.toTensor().is_same(before)) value = now;
      if (!value.isOptionalTensorList()) continue;
      c10::List<std::optional<Tensor>> list;
      for (std::optional<Tensor> each : value.toOptionalTensorList())
        list.push_back(each && each->is_same(before) ? std::optional<Tensor>(now) : each);
      value = std::move(list);
    }
  }

  // A tensor of the host that is an argument: what a copy from a device writes.
  bool is_overwritten(const c10::TensorImpl* host) const {
    return info_.is_copy && (*stack_)[base_].toTensor().unsafeGetTensorImpl() == host;
  }
  static Tensor tensor_of(const c10::TensorImpl* impl) {
    return Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(impl)));
  }

  // Whether torch's C++ copies it to read it: lengths, sizes, flags.
  bool decides(const Tensor& to) const {
    return c10::isIntegralType(to.scalar_type(), true) && flags_ & BLOCKING && to.nbytes() <= kMostLengths;
  }
  static constexpr size_t kMostLengths = 64 << 10;  // Bytes; assumed.

  bool copy_across(bool is_known) {
    if (is_known) {
      if (!aliases_[0].written) write_host_values((*stack_)[base_].toTensor());
      return make_room();
    }
    Tensor to = (*stack_)[base_].toTensor();
    const auto& alias = aliases_[0];
    begin_copy();
    if (alias.written) {
      lose_values(alias.device, cause());
      to = alias.device;
    } else if (can_lose_values(to) && !decides(to)) {
      lose_values(to, unknown_cause(alias.device).value_or(cause()));
    } else {
      assume(to, at::full({}, ask_for_value(info_.name.c_str(), alias.device), at::kDouble));
    }
    stack_->resize(base_);
    stack_->push_back(to);
    if (C10_UNLIKELY(is_recording)) record();
    return true;
  }

  void give(const Results& results, const Cause& cause) {
    Giving giving(aliases_, DispatchKey::CUDA, cause,
                  [this](size_t size) { return device_storage(static_cast<DeviceIndex>(device_), size); });
    giving.to(stack_, base_, results);
    outputs_ = std::move(giving.made);
    for (auto& resized : results.resized) {
      const Tensor& tensor = aliases_[resized.alias].device;
      auto* impl = tensor.unsafeGetTensorImpl();
      if (resized.num_bytes > impl->unsafe_storage().nbytes())
        resize_storage(tensor, static_cast<int64_t>(resized.num_bytes));
      impl->set_sizes_and_strides(resized.like->sizes(), resized.like->strides(), impl->storage_offset());
      lose_values(tensor, cause);
    }
  }

  // CPU torch's kernel gives other strides than CUDA's, which torch's Meta kernel describes.
  void lay_out_as(const Results& expected) {
    const size_t base = stack_->size() - expected.returns.size();
    for (size_t i = 0; i < expected.returns.size(); i++) {
      auto& value = (*stack_)[base + i];
      const auto& like = expected.returns[i].like;
      if (!value.isTensor() || !like) continue;
      const Tensor host = value.toTensor();
      if (!host.defined() || host.sizes() != like->sizes() || host.strides() == like->strides()) continue;
      value = at::empty_strided(host.sizes(), like->strides(), host.options()).copy_(host);
    }
  }

  void begin_copy() {
    const Tensor to = (*stack_)[base_].toTensor(), from = (*stack_)[base_ + 1].toTensor();
    // Aliases look like host tensors by now: only one of a pair that crosses was taken.
    if (aliases_.size() != 1) return;
    const bool is_read = !aliases_[0].written;
    flags_ = is_read ? DEVICE_TO_HOST : HOST_TO_DEVICE;
    const bool is_blocking = !(*stack_)[base_ + 2].toBool();
    if (is_blocking) flags_ |= BLOCKING;
    if (is_read && is_blocking) read_by_host();
  }

  void follow(const Alias& alias) {
    if (alias.device.layout() == at::kSparse) return follow_sparse(alias);
    auto* device = alias.device.unsafeGetTensorImpl();
    auto* host = alias.host.unsafeGetTensorImpl();
    follow_host(device->unsafe_storage());
    if (device->sizes() != host->sizes() || device->strides() != host->strides())
      device->set_sizes_and_strides(host->sizes(), host->strides(), host->storage_offset());
  }

  void follow_sparse(const Alias& alias) {
    auto *device = sparse_impl(alias.device), *host = sparse_impl(alias.host);
    const Tensor indices = give(host->indices(), 0), values = give(host->values(), 0);
    device->raw_resize_(host->sparse_dim(), host->dense_dim(), host->sizes());
    device->set_indices_and_values_unsafe(indices, values);
    device->set_coalesced(host->coalesced());
  }

  void give_results() {
    const size_t num_returns = op_.schema().returns().size(), base = stack_->size() - num_returns;
    for (size_t i = 0; i < num_returns; i++) {
      auto& value = (*stack_)[base + i];
      if (value.isTensor()) value = give(value.toTensor(), i);
      else if (value.isTensorList()) {
        c10::List<Tensor> given;
        for (const Tensor& tensor : value.toTensorList()) given.push_back(give(tensor, i));
        value = std::move(given);
      }
    }
  }

  Tensor give(Tensor host, size_t index) {
    if (!host.defined() || !host.is_cpu()) return host;
    for (auto& alias : aliases_) if (alias.host.is_same(host)) return alias.device;
    for (auto* given : hosts_) if (given == host.unsafeGetTensorImpl()) return host;
    if (host.layout() == at::kSparse) {
      auto* impl = sparse_impl(host);
      return sparse_of(DispatchKey::SparseCUDA, host, give(impl->indices(), index), give(impl->values(), index));
    }
    if (host.layout() != at::kStrided)
      TORCH_CHECK_NOT_IMPLEMENTED(false, "simrank: ", info_.name, " makes a ", host.layout(),
                                  " tensor, which simulated CUDA devices do not have");
    if (!host.has_storage()) return host;
    auto* storage = host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    for (auto& alias : aliases_) {
      if (alias.host.layout() != at::kStrided) continue;
      if (alias.host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() != storage) continue;
      return device_view(alias.device.unsafeGetTensorImpl()->unsafe_storage(), host);
    }
    Tensor result = device_view(on_device(as_small_as(host)), host);
    if (C10_UNLIKELY(rank_.capturing != nullptr)) fresh_.emplace_back(static_cast<int>(index), host_alias(result));
    if (C10_UNLIKELY(is_recording || rank_.capturing)) outputs_.push_back(result);
    return result;
  }

  // CPU torch sums losses up in the memory of their elements, which CUDA gives back.
  static c10::StorageImpl* as_small_as(Tensor& host) {
    if (host.dim() == 0 && host.unsafeGetTensorImpl()->unsafe_storage().nbytes() > host.itemsize()) {
      ComputingFor scratch(-1, 0, Purpose::SCRATCH);
      host = host.clone();
    }
    return host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  }

  // The same storage for all results that share it, wherever the kernel has made it.
  c10::Storage on_device(c10::StorageImpl* made) {
    for (auto& [host, storage] : moved_) if (host == made) return storage;
    const bool is_moved = made->data() && !is_device_memory(made->data());
    auto storage = as_device_storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(made), device_);
    if (is_moved) moved_.emplace_back(made, storage);
    return storage;
  }

  // Whether the program lets its float32 be rounded, by whichever of torch's settings.
  bool rounds_to_tf32() const {
    const auto op = info_.is_product ? at::Float32Op::MATMUL : at::Float32Op::CONV;
    return !aliases_.empty() && aliases_.back().device.scalar_type() == at::kFloat &&
           at::globalContext().float32Precision(at::Float32Backend::CUDA, op) ==
               at::Float32Precision::TF32;
  }

  void record() {
    std::vector<Tensor> inputs;
    c10::SmallVector<bool, 8> written;
    for (auto& alias : aliases_) { inputs.push_back(alias.device); written.push_back(alias.written); }
    record_operation(info_, device_, flags_, inputs, written, outputs_);
  }

  void capture(Stack arguments, bool has_values = true) {
    Graph::Node node{&info_, op_, std::move(arguments), std::move(fresh_), {}, {}, {},
                     static_cast<DeviceIndex>(device_), keys_, flags_ & (CAUSAL | CUDNN | TF32), has_values};
    for (auto& alias : aliases_) {
      node.inputs.push_back(alias.device);
      node.written.push_back(alias.written);
    }
    node.outputs.assign(outputs_.begin(), outputs_.end());
    rank_.capturing->add(std::move(node));
  }

  const OpInfo& info_;
  const c10::OperatorHandle& op_;
  Stack* stack_;
  const DispatchKeySet keys_;
  Rank& rank_;
  const size_t base_;
  int device_ = -1;
  int generator_at_ = -1;
  bool reads_host_ = false;
  bool is_sparse_ = false;
  Tensor unknown_results_;  // Which elements of the result are unknown; undefined: none.
  int64_t flags_ = 0;
  std::optional<Device> common_;
  c10::SmallVector<const c10::TensorImpl*, 2> hosts_;  // Arguments that are the host's.
  c10::SmallVector<Alias, 8> aliases_;
  c10::SmallVector<Tensor, 2> outputs_;
  std::vector<std::pair<int, Tensor>> fresh_;
  std::vector<std::pair<c10::StorageImpl*, c10::Storage>> moved_;  // Results that were made in scratch memory.
};

// ---- what is known of operators
struct TableRow {
  const char* name;
  const char* wrapper;  // Empty: devices may mix. `*`: TensorIterator checks them.
};
constexpr TableRow kCudaOps[] = {
#include "cuda_ops.inc"
};
constexpr const char* kSparseOps[] = {
#include "sparse_ops.inc"
};
const std::unordered_set<std::string> kReadByHost = {
    "_local_scalar_dense", "nonzero", "nonzero.out", "equal", "_unique2", "unique_dim",
    "unique_consecutive", "unique_dim_consecutive", "masked_select", "masked_select.out", "bincount",
    "repeat_interleave.Tensor"};

// Strides of outputs are found by torch's Meta kernel, which describes CUDA's.
const std::unordered_set<std::string> kLaidOutByMeta = {
    "convolution", "convolution_backward", "_fft_c2c", "_fft_c2r", "_fft_r2c", "linalg_eig", "_linalg_svd",
    "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "native_dropout_backward"};

// Of these, and of all whose names begin so, CPU torch's kernels make temporaries and CUDA's do not.
constexpr const char* kWithTemporaries[] = {
    "convolution", "native_dropout_backward", "linalg_", "_linalg_", "_fft_", "mm", "addmm", "bmm", "baddbmm",
    "_scaled_mm", "_grouped_mm", "gather", "sort", "kthvalue", "sum", "masked_select", "upsample_", "adaptive_",
    "_adaptive_", "replication_pad", "reflection_pad", "native_batch_norm", "channel_shuffle", "_chunk_cat", "_ctc_loss"};
bool has_temporaries(const c10::FunctionSchema& schema, const std::string& name) {
  for (auto& argument : schema.arguments()) if (argument.is_out()) return true;
  for (const char* begin : kWithTemporaries) if (name.rfind(begin, 0) == 0) return true;
  return false;
}

struct HalfRule {
  const char* name;
  uint32_t float_returns;
};
constexpr HalfRule kInFloat[] = {
#include "half_ops.inc"
};

std::unordered_map<std::string, TableRow> rows;
std::unordered_map<std::string, c10::KernelFunction> own_kernels;
std::unordered_set<std::string> random_names;
std::unordered_map<std::string, uint32_t> half_rules;
std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OpInfo>> infos;
std::vector<const OpInfo*> infos_by_id;
std::vector<std::unique_ptr<torch::Library>> libraries;

const std::unordered_set<std::string> kProducts = {"mm", "bmm", "addmm", "baddbmm", "addbmm",
                                                   "_addmm_activation"};

Argument kind_of(const c10::Argument& argument) {
  auto type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  const std::string text = type->str();
  if (text == "Tensor") return Argument::TENSOR;
  if (text == "Tensor[]") return Argument::TENSORS;
  if (text == "Tensor?[]") return Argument::OPTIONAL_TENSORS;
  if (text == "Device") return Argument::DEVICE;
  if (text == "Generator") return Argument::GENERATOR;
  return Argument::OTHER;
}

// Whether what an operator without `out` writes does not depend on what was there.
bool is_overwriter(const std::string& name) {
  static const std::unordered_set<std::string> kOverwriters = {
      "copy_", "fill_", "zero_", "_foreach_zero_", "_foreach_copy_", "random_", "normal_", "uniform_", "bernoulli_",
      "exponential_", "cauchy_", "log_normal_", "geometric_"};
  return kOverwriters.count(name.substr(0, name.find('.'))) > 0;
}

// Whether nothing is made, nor resized.
bool makes_nothing(const c10::FunctionSchema& schema) {
  for (auto& result : schema.returns()) if (!result.alias_info()) return false;
  for (auto& argument : schema.arguments()) if (argument.is_out()) return false;
  return schema.name() != "aten::resize_";
}

std::unique_ptr<OpInfo> describe(const c10::FunctionSchema& schema) {
  auto info = std::make_unique<OpInfo>();
  info->name = schema.name().rfind("aten::", 0) == 0 ? schema.name().substr(6) : schema.name();
  if (!schema.overload_name().empty()) info->name += "." + schema.overload_name();
  info->id = static_cast<int32_t>(infos_by_id.size());
  info->makes_nothing = makes_nothing(schema);
  for (auto& argument : schema.arguments()) {
    if (argument.name() == "is_causal") info->causal_at = static_cast<int>(info->arguments.size());
    info->arguments.push_back(kind_of(argument));
    info->writes.push_back(argument.alias_info() && argument.alias_info()->isWrite());
    info->overwrites.push_back(info->writes.back() && (argument.is_out() || is_overwriter(info->name)));
  }
  for (auto& result : schema.returns())
    info->is_view = info->is_view || (result.alias_info() && !result.alias_info()->isWrite());
  info->is_view = info->is_view || info->name == "resize_";
  info->is_copy = info->name == "copy_";
  info->only_moves = info->is_copy || info->name == "cat";
  info->is_product = kProducts.count(info->name.substr(0, info->name.find('.'))) > 0;
  info->is_convolution = info->name.find("convolution") != std::string::npos;
  info->is_foreach = info->name.rfind("_foreach_", 0) == 0;
  info->is_laid_out_by_meta = kLaidOutByMeta.count(info->name) > 0;
  info->reads_host = kReadByHost.count(info->name) > 0;
  if (auto row = rows.find(info->name); row != rows.end()) {
    info->wrapper = row->second.wrapper;
    info->check = info->wrapper.empty() ? DeviceCheck::NONE
                  : info->wrapper == "*" ? DeviceCheck::ITERATOR : DeviceCheck::EXACT;
  }
  if (auto own = own_kernels.find(info->name); own != own_kernels.end()) info->kernel = own->second;
  info->draws = random_names.count(info->name) > 0;
  if (auto rule = half_rules.find(info->name); rule != half_rules.end()) {
    info->in_float = true;
    info->float_returns = rule->second;
  }
  if (info->kernel || info->in_float || has_temporaries(schema, info->name) || info->makes_nothing)
    info->purpose = Purpose::SCRATCH;
  return info;
}

}  // namespace
const OpInfo& info_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;  // A program's own threads do not take turns.
  std::lock_guard<std::mutex> lock(mutex);
  auto& info = infos[&op.schema()];
  if (!info) {
    info = describe(op.schema());
    infos_by_id.push_back(info.get());
  }
  return *info;
}

namespace {
bool is_on_one_device(const OpInfo& info, const Stack& stack) {
  const size_t base = stack.size() - info.arguments.size();
  std::optional<Device> device;
  for (size_t i = 0; i < info.arguments.size(); i++) {
    if (info.arguments[i] != Argument::TENSORS || !stack[base + i].isTensorList()) continue;
    for (const Tensor& tensor : stack[base + i].toTensorList()) {
      if (device && *device != tensor.device()) return false;
      device = tensor.device();
    }
  }
  return true;
}
void run(const OpInfo& info, const c10::OperatorHandle& op, Stack* stack) {
  // As in CUDA, lists across devices take the slow path, which is an operation for each tensor.
  if (info.is_foreach && !is_on_one_device(info, *stack))
    op.redispatchBoxed(kDense, stack);
  else
    Call(info, op, stack, kDense).run();
}
void refuse_without_kernel(const OpInfo& info, const c10::OperatorHandle& op, DispatchKey key) {
  if (lacks_values && op.hasComputedKernelForDispatchKey(DispatchKey::Meta)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(info.kernel || op.hasComputedKernelForDispatchKey(key), "simrank: '",
                              op.schema().name(), "' has no kernel for simulated CUDA devices, nor has CPU torch one");
}
void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const OpInfo& info = info_of(op);
  refuse_without_kernel(info, op, DispatchKey::CPU);
  run(info, op, stack);
}
void sparse_fallback(const c10::OperatorHandle& op, Stack* stack) {
  const OpInfo& info = info_of(op);
  refuse_without_kernel(info, op, DispatchKey::SparseCPU);
  Call(info, op, stack, kSparse).run();
}

struct Registered final : c10::OperatorKernel {
  explicit Registered(const OpInfo& info) : info(info) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) { run(info, op, stack); }
  const OpInfo& info;
};

std::optional<c10::OperatorHandle> operator_of(const std::string& name) {
  const auto dot = name.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {"aten::" + name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
}

// Tensors in coordinate layout: a defaults' kernel would come before the fallback.
void register_sparse_kernels() {
  auto aten = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                               std::make_optional(DispatchKey::SparseCUDA), __FILE__, __LINE__);
  for (const char* name : kSparseOps) {
    auto op = operator_of(name);
    if (op && op->hasComputedKernelForDispatchKey(DispatchKey::SparseCPU))
      aten->impl(name, torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>());
  }
  libraries.push_back(std::move(aten));
  auto others = std::make_unique<torch::Library>(torch::Library::IMPL, "_",
                                                 std::make_optional(DispatchKey::SparseCUDA), __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>());
  libraries.push_back(std::move(others));
}
}  // namespace

const char* name_of_op(int32_t id) {
  return id >= 0 && id < static_cast<int32_t>(infos_by_id.size()) ? infos_by_id[id]->name.c_str() : "";
}

void register_typed_kernels(torch::Library& library, std::unordered_set<std::string>& names);

// torch would share the storage until one of both is written, which it tells by the allocator.
at::Tensor lazy_clone(const at::Tensor& self) { return at::clone(self, at::MemoryFormat::Preserve); }

// A kernel of its own for each operator that has one in CUDA: with the fallback alone, composites
// would run first, and the record would show N operations where CUDA launches one.
void register_kernels() {
  const Unwarned unwarned;  // Builds for CUDA have kernels, which are replaced on purpose.
  for (auto& row : kCudaOps) rows[row.name] = row;
  for (auto& rule : kInFloat) half_rules[rule.name] = rule.float_returns;
  for (auto& all : {host_kernels(), random_kernels()})
    for (auto& own : all) own_kernels[own.name] = own.kernel;
  for (auto& own : random_kernels()) random_names.insert(own.name);
  auto cuda = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                               std::make_optional(DispatchKey::CUDA), __FILE__, __LINE__);
  std::unordered_set<std::string> typed;
  register_typed_kernels(*cuda, typed);
  cuda->impl("_lazy_clone", TORCH_FN(lazy_clone));
  for (auto& row : kCudaOps) {
    const std::string name = row.name;
    if (typed.count(name)) continue;
    auto op = operator_of(name);
    if (!op) continue;  // Declared for one build of torch only.
    const OpInfo& info = info_of(*op);
    if (!info.kernel && !op->hasComputedKernelForDispatchKey(DispatchKey::CPU)) continue;
    cuda->impl(row.name, torch::CppFunction::makeFromBoxedKernel(
                             c10::BoxedKernel::makeFromFunctor(std::make_unique<Registered>(info))));
  }
  libraries.push_back(std::move(cuda));
  auto others = std::make_unique<torch::Library>(torch::Library::IMPL, "_",
                                                 std::make_optional(DispatchKey::CUDA), __FILE__, __LINE__);
  others->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  libraries.push_back(std::move(others));
  register_sparse_kernels();
}
}  // namespace simrank
