// Kernels of our own: those that only touch metadata, and those that only CUDA has.
// The latter get host aliases (`fallback.cpp` made them) and are written with CPU torch's operators.
#include "fallback.h"
#include "values.h"
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>
#include <unordered_set>

namespace simrank {

namespace {
using c10::SymInt;
using c10::SymIntArrayRef;
using MaybeTensor = std::optional<Tensor>;

// ---- metadata
Tensor made(DeviceIndex device, caffe2::TypeMeta dtype, size_t size) {
  return Tensor(c10::make_intrusive<c10::TensorImpl>(
      device_storage(device, size), DispatchKeySet(DispatchKey::CUDA), dtype));
}
DeviceIndex wanted_device(std::optional<Device> device) {
  return device_or_current(device ? device->index() : DeviceIndex(-1));
}
caffe2::TypeMeta wanted_dtype(std::optional<at::ScalarType> dtype) {
  return c10::scalarTypeToTypeMeta(dtype.value_or(c10::get_default_dtype_as_scalartype()));
}
void refuse_pinned(std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
}
Tensor empty(SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool> pinned,
             std::optional<at::MemoryFormat> format) {
  refuse_pinned(pinned);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const auto type = wanted_dtype(dtype);
  Tensor result = made(wanted_device(device), type,
                       at::detail::computeStorageNbytesContiguous(sizes, type.itemsize()));
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Contiguous && *format != at::MemoryFormat::Preserve)
    impl->empty_tensor_restride(*format);
  return result;
}
Tensor empty_strided(SymIntArrayRef size, SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device,
                     std::optional<bool> pinned) {
  refuse_pinned(pinned);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  const auto type = wanted_dtype(dtype);
  Tensor result = made(wanted_device(device), type,
                       at::detail::computeStorageNbytes(sizes, strides, type.itemsize()));
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return result;
}
Tensor as_strided(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride, std::optional<SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}
Tensor view(const Tensor& self, SymIntArrayRef size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); }
Tensor reshape_alias(const Tensor& self, SymIntArrayRef size, SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
Tensor& set_view(Tensor& self, c10::Storage source, SymInt offset, SymIntArrayRef size, SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const int64_t start = offset.guard_int(__FILE__, __LINE__);
  if (stride.data()) {
    impl->set_sizes_and_strides(sizes, C10_AS_INTARRAYREF_SLOW(stride), start);
  } else {
    impl->set_sizes_contiguous(sizes);
    impl->set_storage_offset(start);
  }
  return self;
}
Tensor& set_storage(Tensor& self, c10::Storage source) {
  const int64_t numel = source.nbytes() / self.dtype().itemsize();
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(0);
  impl->set_sizes_contiguous({numel});
  return self;
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  auto *impl = self.unsafeGetTensorImpl(), *from = source.unsafeGetTensorImpl();
  if (impl == from) return self;
  impl->set_storage_keep_dtype(from->storage());
  impl->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  return self;
}
Tensor& set_nothing(Tensor& self) { return set_storage(self, device_storage(self.device().index(), 0)); }
void record_stream(Tensor& self, Stream stream) {
  record_use(self.storage().data(), stream.device_index(), stream.id());
}

// ---- attention
// Sizes are symbols in a graph that is traced for many shapes.
bool has_elements(const Tensor& t) { return TORCH_GUARD_OR_TRUE(t.sym_numel().sym_ne(0)); }
bool flash_takes_wide = false;  // CUDA does not: for programs that are compared in float64.
int64_t choose_attention(const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& mask,
                         double dropout, bool, std::optional<double>, bool grouped) {
  // As CUDA chooses, except that what CPU torch's fused kernel cannot do is left to the math path.
  constexpr int64_t kMath = 0, kFlash = 1, kEfficient = 2, kMostHeadSize = 256;
  const auto& context = at::globalContext();
  const bool is_plain = q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && dropout == 0 &&
                        k.sym_size(1) == v.sym_size(1) && q.sym_size(0) == k.sym_size(0) &&
                        q.sym_size(3) == k.sym_size(3) && q.sym_size(3) == v.sym_size(3) &&
                        has_elements(q) && has_elements(k);
  const bool has_as_many_heads = is_plain && q.sym_size(1) == k.sym_size(1);
  const bool has_flash_type = is_half(q) || (flash_takes_wide && at::isFloatingType(q.scalar_type()));
  const bool has_heads = has_as_many_heads || (is_plain && grouped && q.sym_size(1) % k.sym_size(1) == 0);
  if (has_heads && context.userEnabledFlashSDP() && has_flash_type && !mask && q.sym_size(3) <= kMostHeadSize) return kFlash;
  const bool mask_is_fixed = !mask || !mask->requires_grad();
  if (has_as_many_heads && context.userEnabledMemEfficientSDP() && mask_is_fixed && q.scalar_type() != at::kDouble) return kEfficient;
  TORCH_CHECK(context.userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return kMath;
}
at::native::RegisterCUDADispatch<decltype(at::native::_fused_sdp_choice_stub)> register_choice(
    at::native::_fused_sdp_choice_stub, &choose_attention);

Tensor no_philox() { return at::zeros({}, at::TensorOptions(at::kLong)); }
// Several heads of queries may share one of keys and values.
Tensor for_each_head(const Tensor& shared, const Tensor& q) {
  return shared.size(1) == q.size(1) ? shared : shared.repeat_interleave(q.size(1) / shared.size(1), 1);
}
Tensor of_shared_heads(const Tensor& grad, const Tensor& shared) {
  if (grad.size(1) == shared.size(1)) return grad;
  return grad.unflatten(1, {shared.size(1), -1}).sum(2, false, grad.scalar_type());
}
// Strides are CUDA's, which compiled graphs rely on: those of an input, or sequences before heads.
Tensor laid_out_as(const Tensor& t, const Tensor& like) {
  return t.strides() == like.strides() ? t : at::empty_like(like, t.options()).copy_(t);
}
Tensor by_sequence(const Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); }
using Flash = std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor>;
Flash flash_attention(const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool causal, bool,
                      std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0, "simrank: flash attention with dropout on simulated CUDA devices");
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      q, for_each_head(k, q), for_each_head(v, q), 0, causal, {}, scale);
  // The others as CUDA's kernel returns them: nothing, or what has a shape and no meaning.
  const auto state = at::TensorOptions(at::kUInt64);
  return {laid_out_as(out, q), lse.contiguous(), {}, {}, q.size(2), k.size(2), at::zeros({2}, state), at::zeros({}, state),
          at::empty({0}, q.options())};
}
std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
    const Tensor&, const Tensor&, SymInt, SymInt, double, bool causal, const Tensor&, const Tensor&,
    std::optional<double> scale) {
  auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, q, for_each_head(k, q), for_each_head(v, q), out, lse, 0, causal, {}, scale);
  return {laid_out_as(gq, q), laid_out_as(of_shared_heads(gk, k), k), laid_out_as(of_shared_heads(gv, v), v)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& bias, bool with_lse,
    double dropout, bool causal, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0, "simrank: efficient attention with dropout on simulated CUDA devices");
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, causal, bias, scale);
  constexpr int64_t kRows = 32;  // CUDA's sums are of whole tiles of queries, or left out.
  const int64_t rows = q.size(2), padding = (kRows - rows % kRows) % kRows;
  const double infinity = std::numeric_limits<double>::infinity();
  lse = with_lse ? at::constant_pad_nd(lse, {0, padding}, infinity).contiguous() : lse.new_empty({q.size(0), q.size(1), 0});
  return {by_sequence(out), lse, no_philox(), no_philox()};
}
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, const Tensor& out,
    const Tensor& lse, const Tensor&, const Tensor&, double, std::array<bool, 4>, bool causal,
    std::optional<double> scale) {
  MaybeTensor mask;
  if (bias.defined() && bias.numel()) mask = bias;
  auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, q, k, v, out, lse.narrow(2, 0, q.size(2)), 0, causal, mask, scale);
  return {by_sequence(gq), by_sequence(gk), by_sequence(gv), Tensor()};
}

// ---- normalisation
Tensor wide(const Tensor& t) { return is_half(t) ? t.to(at::kFloat) : t; }
bool is_given(const MaybeTensor& t) { return t && t->defined(); }
std::vector<int64_t> last_dims(size_t count) {
  std::vector<int64_t> dims;
  for (size_t i = 0; i < count; i++) dims.push_back(-1 - static_cast<int64_t>(i));
  return dims;
}
// CUDA's kernels read rows that lie one behind the other, and write such.
std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, at::IntArrayRef shape, const MaybeTensor& weight,
                                    std::optional<double> eps) {
  const Tensor x = wide(input).contiguous();
  const double smallest = eps.value_or(x.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                                      : std::numeric_limits<float>::epsilon());
  const Tensor rstd = x.pow(2).mean(last_dims(shape.size()), true).add_(smallest).rsqrt_();
  Tensor result = x * rstd;
  if (is_given(weight)) result = result * wide(*weight);
  return {result.to(input.scalar_type()), rstd};
}
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& input, at::IntArrayRef shape,
                                             const Tensor& rstd, const MaybeTensor& weight,
                                             std::array<bool, 2> wanted) {
  const Tensor x = wide(input).contiguous() * rstd, g = wide(grad).contiguous();
  const Tensor scaled = is_given(weight) ? g * wide(*weight) : g;
  Tensor grad_input, grad_weight;
  if (wanted[0])
    grad_input = (rstd * (scaled - x * (scaled * x).mean(last_dims(shape.size()), true))).to(input.scalar_type());
  if (wanted[1] && is_given(weight)) {
    const int64_t leading = input.dim() - static_cast<int64_t>(shape.size());
    Tensor product = (g * x).reshape({-1, c10::multiply_integers(shape)});
    grad_weight = (leading ? product.sum(0) : product).reshape(shape).to(weight->scalar_type());
  }
  return {grad_input, grad_weight};
}

// ---- synchronized batch norm: the pieces between its collectives
std::vector<int64_t> all_but_channels(const Tensor& t) {
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < t.dim(); d++) if (d != 1) dims.push_back(d);
  return dims;
}
Tensor per_channel(const Tensor& stat, const Tensor& like) {
  std::vector<int64_t> shape(like.dim(), 1);
  shape[1] = like.size(1);
  return stat.reshape(shape);
}
std::tuple<Tensor, Tensor> norm_stats(const Tensor& input, double eps) {
  const Tensor x = wide(input);
  const auto dims = all_but_channels(x);
  return {x.mean(dims), x.var(dims, false).add_(eps).rsqrt_()};
}
Tensor norm_elements(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, const Tensor& mean,
                     const Tensor& invstd, double) {
  Tensor result = (wide(input) - per_channel(mean, input)) * per_channel(invstd, input);
  if (is_given(weight)) result = result * per_channel(wide(*weight), input);
  if (is_given(bias)) result = result + per_channel(wide(*bias), input);
  return result.to(input.scalar_type());
}
std::tuple<Tensor, Tensor> norm_gather(const Tensor&, const Tensor& mean, const Tensor& invstd,
                                       const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                       double momentum, double eps, const Tensor& counts) {
  const Tensor n = counts.to(mean.scalar_type()).reshape({-1, 1}), total = n.sum();
  const Tensor all_mean = (mean * n).sum(0) / total;
  const Tensor squares = ((invstd.pow(-2) - eps + (mean - all_mean).pow(2)) * n).sum(0);
  if (is_given(running_mean)) running_mean->mul_(1 - momentum).add_(all_mean.to(running_mean->scalar_type()), momentum);
  if (is_given(running_var))
    running_var->mul_(1 - momentum).add_((squares / (total - 1)).to(running_var->scalar_type()), momentum);
  return {all_mean, (squares / total + eps).rsqrt()};
}
std::tuple<Tensor, Tensor, Tensor, Tensor> norm_backward_reduce(
    const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd, const MaybeTensor& weight,
    bool wants_input, bool wants_weight, bool wants_bias) {
  const Tensor g = wide(grad), centred = wide(input) - per_channel(mean, input);
  const auto dims = all_but_channels(input);
  const Tensor sum_dy = g.sum(dims), sum_dy_xmu = (g * centred).sum(dims);
  const auto type = is_given(weight) ? weight->scalar_type() : sum_dy.scalar_type();
  return {wants_input ? sum_dy : Tensor(), wants_input ? sum_dy_xmu : Tensor(),
          wants_weight ? (sum_dy_xmu * invstd).to(type) : Tensor(), wants_bias ? sum_dy.to(type) : Tensor()};
}
Tensor norm_backward_elements(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                              const MaybeTensor& weight, const Tensor& sum_dy, const Tensor& sum_dy_xmu,
                              const Tensor& counts) {
  const Tensor total = counts.sum().to(mean.scalar_type());
  const Tensor centred = wide(input) - per_channel(mean, input);
  Tensor result = wide(grad) - per_channel(sum_dy / total, input) -
                  centred * per_channel(invstd.pow(2) * sum_dy_xmu / total, input);
  result = result * per_channel(is_given(weight) ? invstd * wide(*weight) : invstd, input);
  return result.to(input.scalar_type());
}

// ---- softmax of a half into a float, which only CUDA offers
Tensor softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  const Tensor result = at::_softmax(wide(self), dim, false);
  return half_to_float ? result : result.to(self.scalar_type());
}
Tensor log_softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  const Tensor result = at::_log_softmax(wide(self), dim, false);
  return half_to_float ? result : result.to(self.scalar_type());
}
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType type) {
  const Tensor o = wide(output);
  return at::_softmax_backward_data(wide(grad).to(o.scalar_type()), o, dim, o.scalar_type()).to(type);
}
Tensor log_softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType type) {
  const Tensor o = wide(output);
  return at::_log_softmax_backward_data(wide(grad).to(o.scalar_type()), o, dim, o.scalar_type()).to(type);
}

// ---- recurrent cells
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& cx,
                                             const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  Tensor gates = wide(input) + wide(hidden);
  if (is_given(input_bias)) gates = gates + wide(*input_bias) + wide(*hidden_bias);
  auto parts = gates.chunk(4, 1);
  const Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(), out = parts[3].sigmoid();
  const Tensor cy = forget * wide(cx) + in * cell;
  const auto type = input.scalar_type();
  return {(out * cy.tanh()).to(type), cy.to(type), at::cat({in, forget, cell, out}, 1).to(type)};
}
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const auto type = workspace.scalar_type();
  auto parts = wide(workspace).chunk(4, 1);
  const Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const Tensor squashed = wide(cy).tanh();
  const Tensor gh = is_given(grad_hy) ? wide(*grad_hy) : at::zeros_like(squashed);
  const Tensor gc = (is_given(grad_cy) ? wide(*grad_cy) : at::zeros_like(squashed)) + gh * out * (1 - squashed * squashed);
  const Tensor gates = at::cat({gc * cell * in * (1 - in), gc * wide(cx) * forget * (1 - forget),
                                gc * in * (1 - cell * cell), gh * squashed * out * (1 - out)}, 1);
  return {gates.to(type), (gc * forget).to(type), has_bias ? gates.sum(0).to(type) : Tensor()};
}
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& hx,
                                    const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const bool biased = is_given(input_bias);
  auto from_input = (biased ? wide(input) + wide(*input_bias) : wide(input)).chunk(3, 1);
  auto from_hidden = (biased ? wide(hidden) + wide(*hidden_bias) : wide(hidden)).chunk(3, 1);
  const Tensor reset = (from_input[0] + from_hidden[0]).sigmoid(), update = (from_input[1] + from_hidden[1]).sigmoid();
  const Tensor fresh = (from_input[2] + reset * from_hidden[2]).tanh(), old = wide(hx);
  const auto type = input.scalar_type();
  return {(fresh + update * (old - fresh)).to(type), at::cat({reset, update, fresh, old, from_hidden[2]}, 1).to(type)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto type = workspace.scalar_type();
  auto parts = wide(workspace).chunk(5, 1);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &old = parts[3], &hidden = parts[4];
  const Tensor g = wide(grad), to_update = g * (old - fresh) * update * (1 - update);
  const Tensor to_fresh = g * (1 - update) * (1 - fresh * fresh), to_reset = to_fresh * hidden * reset * (1 - reset);
  const Tensor input = at::cat({to_reset, to_update, to_fresh}, 1), hid = at::cat({to_reset, to_update, to_fresh * reset}, 1);
  return {input.to(type), hid.to(type), (g * update).to(type), has_bias ? input.sum(0).to(type) : Tensor(),
          has_bias ? hid.sum(0).to(type) : Tensor()};
}

// ---- losses: there is no cuDNN here, and torch goes on with its own kernel
bool no_cudnn_ctc(const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) { return false; }
bool no_cudnn_ctc_tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) { return false; }

// ---- matrix products into another dtype
Tensor mm_into(const Tensor& a, const Tensor& b, at::ScalarType type) { return at::mm(a.to(type), b.to(type)); }
Tensor& mm_into_out(const Tensor& a, const Tensor& b, at::ScalarType type, Tensor& out) { return out.copy_(mm_into(a, b, type)); }
Tensor bmm_into(const Tensor& a, const Tensor& b, at::ScalarType type) { return at::bmm(a.to(type), b.to(type)); }
Tensor& bmm_into_out(const Tensor& a, const Tensor& b, at::ScalarType type, Tensor& out) { return out.copy_(bmm_into(a, b, type)); }
using at::Scalar;
Tensor addmm_into(const Tensor& c, const Tensor& a, const Tensor& b, at::ScalarType type, const Scalar& beta, const Scalar& alpha) {
  return at::addmm(c.to(type), a.to(type), b.to(type), beta, alpha);
}
Tensor& addmm_into_out(const Tensor& c, const Tensor& a, const Tensor& b, at::ScalarType type, const Scalar& beta, const Scalar& alpha, Tensor& out) {
  return out.copy_(addmm_into(c, a, b, type, beta, alpha));
}
Tensor baddbmm_into(const Tensor& c, const Tensor& a, const Tensor& b, at::ScalarType type, const Scalar& beta, const Scalar& alpha) {
  return at::baddbmm(c.to(type), a.to(type), b.to(type), beta, alpha);
}
Tensor& baddbmm_into_out(const Tensor& c, const Tensor& a, const Tensor& b, at::ScalarType type, const Scalar& beta, const Scalar& alpha, Tensor& out) {
  return out.copy_(baddbmm_into(c, a, b, type, beta, alpha));
}

// ---- optimizers: CUDA's fused Adam also takes fp32 parameters whose states are bf16, and computes in fp32.
std::vector<Tensor> widened(at::TensorList tensors) {
  std::vector<Tensor> wide_ones;
  for (auto& tensor : tensors) wide_ones.push_back(wide(tensor));
  return wide_ones;
}
void check_adam_type(const char* step, const char* list, at::TensorList tensors, at::ScalarType expected) {
  for (auto& tensor : tensors)
    TORCH_CHECK(tensor.scalar_type() == expected, "Mixed-precision fused ", step, " requires ",
                expected == at::kFloat ? "float32 " : "bfloat16 ", list, ", got ", tensor.scalar_type());
}
template <typename Rate>
using AdamStep = void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, Rate,
                          double, double, double, double, bool, bool, const MaybeTensor&, const MaybeTensor&);
template <typename Rate, AdamStep<Rate> own, bool is_decoupled>
void fused_adam(at::TensorList params, at::TensorList grads, at::TensorList means, at::TensorList squares, at::TensorList most,
                at::TensorList steps, Rate rate, double beta1, double beta2, double decay, double eps, bool amsgrad,
                bool maximize, const MaybeTensor& scale, const MaybeTensor& found_inf) {
  const bool is_mixed = !params.empty() && params[0].scalar_type() != means[0].scalar_type();
  const char* name = is_decoupled ? "AdamW" : "Adam";
  if (is_mixed) {
    check_adam_type(name, "params", params, at::kFloat);
    check_adam_type(name, "grads", grads, at::kFloat);
    check_adam_type(name, "optimizer states", means, at::kBFloat16);
    check_adam_type(name, "optimizer states", squares, at::kBFloat16);
    if (amsgrad) check_adam_type(name, "max_exp_avg_sqs", most, at::kBFloat16);
  }
  const at::TensorList states[] = {means, squares, most};
  std::vector<Tensor> own_states[3];
  for (int kind = 0; kind < 3; kind++) own_states[kind] = is_mixed ? widened(states[kind]) : states[kind].vec();
  own(params, grads, own_states[0], own_states[1], own_states[2], steps, rate, beta1, beta2, decay, eps, amsgrad, maximize,
      scale, found_inf);
  if (!is_mixed) return;
  for (int kind = 0; kind < 3; kind++)
    for (size_t i = 0; i < states[kind].size(); i++) states[kind][i].copy_(own_states[kind][i]);
}
constexpr auto adam = fused_adam<double, at::_fused_adam_, false>;
constexpr auto adamw = fused_adam<double, at::_fused_adamw_, true>;
constexpr auto adam_tensor_lr = fused_adam<const Tensor&, at::_fused_adam_, false>;
constexpr auto adamw_tensor_lr = fused_adam<const Tensor&, at::_fused_adamw_, true>;

// ---- histograms: CUDA counts integers, CPU torch only floats; up to 2^53 the bins of doubles are the same.
Tensor counted(const Tensor& self, int64_t bins, const Scalar& least, const Scalar& most) {
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return at::histc(self, bins, least, most);
  return at::histc(self.to(at::kDouble), bins, least, most).to(self.scalar_type());
}
Tensor& counted_out(const Tensor& self, int64_t bins, const Scalar& least, const Scalar& most, Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "torch.histogram: input tensor and hist tensor should have the same dtype");
  Tensor result = counted(self, bins, least, most);
  return out.resize_(result.sizes()).copy_(result);
}
}  // namespace

// In evaluation CPU torch leaves out the statistics that CUDA saves: the running ones.
using Normed = std::tuple<Tensor, Tensor, Tensor>;
Normed with_statistics(Normed normed, const Tensor& mean, const Tensor& variance, double eps) {
  auto& [out, saved_mean, saved_invstd] = normed;
  if (saved_mean.numel() || !mean.defined() || !variance.defined()) return normed;
  return {out, mean.clone(), variance.add(eps).rsqrt_()};
}
Normed batch_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& mean,
                  const MaybeTensor& variance, bool training, double momentum, double eps) {
  auto normed = at::native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps);
  return with_statistics(std::move(normed), mean.value_or(Tensor()), variance.value_or(Tensor()), eps);
}
Normed batch_norm_legit(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, Tensor& mean,
                        Tensor& variance, bool training, double momentum, double eps) {
  auto normed = at::_native_batch_norm_legit(input, weight, bias, mean, variance, training, momentum, eps);
  return with_statistics(std::move(normed), mean, variance, eps);
}

// Of torch's composites: a factorization reports on the host whether it could be made. Without values
// it could: what follows has its shapes.
void linalg_check_errors(const Tensor& infos, c10::string_view name, bool is_matrix) {
  StatingValue no_error(0);
  at::native::_linalg_check_errors(infos, name, is_matrix);
}

void register_typed_kernels(torch::Library& library, std::unordered_set<std::string>& names) {
#define TYPED(name, function) library.impl(name, TORCH_FN(function)); names.insert(name)
  TYPED("_linalg_check_errors", linalg_check_errors);
  TYPED("empty.memory_format", empty);
  TYPED("empty_strided", empty_strided);
  TYPED("as_strided", as_strided);
  TYPED("view", view);
  TYPED("_reshape_alias", reshape_alias);
  TYPED("set_.source_Storage_storage_offset", set_view);
  TYPED("set_.source_Storage", set_storage);
  TYPED("set_.source_Tensor", set_tensor);
  TYPED("set_", set_nothing);
  TYPED("record_stream", record_stream);
  TYPED("_fused_sdp_choice", choose_attention);
#undef TYPED
}

#define KERNEL(name, function) {name, c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(function))}
void let_flash_take_wide(bool is_on) { flash_takes_wide = is_on; }
std::vector<HostKernel> host_kernels() {
  return {KERNEL("_scaled_dot_product_flash_attention", flash_attention),
          KERNEL("_scaled_dot_product_flash_attention_backward", flash_attention_backward),
          KERNEL("_scaled_dot_product_efficient_attention", efficient_attention),
          KERNEL("_scaled_dot_product_efficient_attention_backward", efficient_attention_backward),
          KERNEL("native_batch_norm", batch_norm), KERNEL("_native_batch_norm_legit", batch_norm_legit),
          KERNEL("_fused_rms_norm", rms_norm), KERNEL("_fused_rms_norm_backward", rms_norm_backward),
          KERNEL("batch_norm_stats", norm_stats), KERNEL("batch_norm_elemt", norm_elements),
          KERNEL("batch_norm_gather_stats_with_counts", norm_gather),
          KERNEL("batch_norm_backward_reduce", norm_backward_reduce),
          KERNEL("batch_norm_backward_elemt", norm_backward_elements),
          KERNEL("_softmax", softmax), KERNEL("_log_softmax", log_softmax),
          KERNEL("_softmax_backward_data", softmax_backward), KERNEL("_log_softmax_backward_data", log_softmax_backward),
          KERNEL("_thnn_fused_lstm_cell", lstm_cell), KERNEL("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward),
          KERNEL("_thnn_fused_gru_cell", gru_cell), KERNEL("_thnn_fused_gru_cell_backward", gru_cell_backward),
          KERNEL("_use_cudnn_ctc_loss", no_cudnn_ctc), KERNEL("_use_cudnn_ctc_loss.Tensor", no_cudnn_ctc_tensor),
          KERNEL("_use_miopen_ctc_loss", no_cudnn_ctc), KERNEL("_use_miopen_ctc_loss.Tensor", no_cudnn_ctc_tensor),
          KERNEL("mm.dtype", mm_into), KERNEL("mm.dtype_out", mm_into_out), KERNEL("bmm.dtype", bmm_into),
          KERNEL("bmm.dtype_out", bmm_into_out), KERNEL("addmm.dtype", addmm_into), KERNEL("addmm.dtype_out", addmm_into_out),
          KERNEL("baddbmm.dtype", baddbmm_into), KERNEL("baddbmm.dtype_out", baddbmm_into_out),
          KERNEL("_fused_adam_", adam), KERNEL("_fused_adam_.tensor_lr", adam_tensor_lr),
          KERNEL("_fused_adamw_", adamw), KERNEL("_fused_adamw_.tensor_lr", adamw_tensor_lr),
          KERNEL("histc", counted), KERNEL("histc.out", counted_out)};
}
#undef KERNEL
}  // namespace simrank
