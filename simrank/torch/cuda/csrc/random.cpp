// Random numbers as CUDA draws them: the same Philox words to the same elements, and the same
// advance of the generator's offset.
//
// Exact: which words an element gets, integers, and offsets, of uniform_, normal_, random_*,
// bernoulli_ (with a number), exponential_, cauchy_, log_normal_, geometric_, randperm, dropout and
// multinomial without replacement, up to 2^31 elements. Floating-point transforms agree to the last
// bits only: CUDA's log, sin and cos are not the host's.
// Not CUDA's numbers: poisson, binomial, gamma, dirichlet, rrelu and multinomial with replacement
// (CPU torch's algorithms, from a generator seeded by (seed, offset)).
// Source: ATen/native/cuda/DistributionTemplates.h, Dropout.cu, Randperm.cu of torch 2.13.
#include "fallback.h"
#include "generator.h"
#include "philox.h"
#include "shapes.h"
#include <ATen/ATen.h>
#include <ATen/AccumulateType.h>
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/NativeFunctions.h>
#include <ATen/OpMathType.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/core/TransformationHelper.h>
#include <algorithm>
#include <numeric>

namespace simrank {

namespace {
constexpr int64_t kBlockSize = 256;
int64_t max_blocks = 132 * (2048 / kBlockSize);  // Of an H100, until `enable` says otherwise.

int64_t num_threads_for(int64_t numel) {
  return kBlockSize * std::min(max_blocks, (numel + kBlockSize - 1) / kBlockSize);
}

// Where elements lie, in the order in which TensorIterator would count them.
class Elements {
 public:
  explicit Elements(at::TensorIteratorBase& iter)
      : data_(static_cast<char*>(iter.data_ptr(0))), shape_(iter.shape().vec()),
        strides_(iter.strides(0).vec()), is_flat_(shape_.size() <= 1) {}
  void* at(int64_t index) const {
    if (C10_LIKELY(is_flat_)) return data_ + (shape_.empty() ? 0 : index * strides_[0]);
    int64_t offset = 0;
    for (size_t d = 0; d < shape_.size(); d++) {
      offset += index % shape_[d] * strides_[d];
      index /= shape_[d];
    }
    return data_ + offset;
  }

 private:
  char* data_;
  std::vector<int64_t> shape_, strides_;
  bool is_flat_;
};

// A grid-stride loop in which each thread turns one group of words into `kPerCall` numbers.
template <int kPerCall, typename Draw, typename Store>
void for_each_draw(PhiloxGenerator& generator, int64_t numel, Draw draw, Store store) {
  const int64_t threads = num_threads_for(numel), round = threads * kPerCall;
  const int64_t calls = (numel - 1) / round + 1;
  const uint64_t seed = generator.state_->seed;
  const uint64_t first_call = generator.advance(calls * 4) / 4;
  if (draws_nothing) return;
  for (int64_t call = 0; call < calls; call++) {
    for (int64_t thread = 0; thread < std::min(threads, numel - call * round); thread++) {
      auto numbers = draw(philox::words(seed, thread, first_call + call));
      for (int i = 0; i < kPerCall; i++) {
        const int64_t index = call * round + i * threads + thread;
        if (index < numel) store(index, numbers[i]);
      }
    }
  }
}

std::array<uint64_t, 2> as_uint64(const philox::Words& w) {
  return {philox::joined(w[0], w[1]), philox::joined(w[2], w[3])};
}
template <typename scalar_t> auto as_uniform(const philox::Words& w) {
  if constexpr (std::is_same_v<scalar_t, double>)
    return std::array<double, 2>{philox::uniform(w[0], w[1]), philox::uniform(w[2], w[3])};
  else
    return std::array<float, 4>{philox::uniform(w[0]), philox::uniform(w[1]),
                                philox::uniform(w[2]), philox::uniform(w[3])};
}
template <typename scalar_t> auto as_normal(const philox::Words& w) {
  if constexpr (std::is_same_v<scalar_t, double>) {
    std::array<double, 2> numbers;
    philox::normal(w, numbers.data());
    return numbers;
  } else {
    std::array<float, 4> numbers;
    philox::normal(w[0], w[1], &numbers[0]);
    philox::normal(w[2], w[3], &numbers[2]);
    return numbers;
  }
}

template <typename scalar_t, int kPerCall, typename Draw, typename Transform>
void fill(at::TensorIteratorBase& iter, std::optional<at::Generator> given, Draw draw,
          Transform transform) {
  if (!iter.numel()) return;
  Elements elements(iter);
  for_each_draw<kPerCall>(philox_of(given, computing_index()), iter.numel(), draw,
                          [&](int64_t index, auto number) {
                            *static_cast<scalar_t*>(elements.at(index)) = transform(number);
                          });
}
template <typename scalar_t, typename Transform>
void fill_uniform(at::TensorIteratorBase& iter, std::optional<at::Generator> given, Transform transform) {
  constexpr int kPerCall = std::is_same_v<scalar_t, double> ? 2 : 4;
  fill<scalar_t, kPerCall>(iter, given, as_uniform<scalar_t>, transform);
}
template <typename scalar_t, typename Transform>
void fill_normal(at::TensorIteratorBase& iter, std::optional<at::Generator> given, Transform transform) {
  constexpr int kPerCall = std::is_same_v<scalar_t, double> ? 2 : 4;
  fill<scalar_t, kPerCall>(iter, given, as_normal<scalar_t>, transform);
}

using Given = std::optional<at::Generator>;
template <typename> struct Uniform {
  void operator()(at::TensorIteratorBase& iter, double from_, double to_, Given given) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "uniform", [&] {
      const auto from = static_cast<scalar_t>(from_), to = static_cast<scalar_t>(to_);
      using math_t = at::opmath_type<scalar_t>;
      const auto range = static_cast<math_t>(to - from);
      fill_uniform<scalar_t>(iter, given, [=](math_t number) {
        auto value = static_cast<scalar_t>(number * range + from);
        return value == to ? from : value;  // From (0, 1] to [0, 1).
      });
    });
  }
};
template <typename> struct Normal {
  void operator()(const Tensor& self, double mean_, double std_, Given given) {
    auto iter = at::TensorIterator::borrowing_nullary_op(self);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "normal", [&] {
      using math_t = at::acc_type<scalar_t, true>;
      const auto mean = static_cast<math_t>(mean_), std = static_cast<math_t>(std_);
      fill_normal<scalar_t>(iter, given,
                            [=](math_t number) { return static_cast<scalar_t>(number * std + mean); });
    });
  }
};
template <typename> struct LogNormal {
  void operator()(at::TensorIteratorBase& iter, double mean_, double std_, Given given) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "log_normal", [&] {
      using math_t = at::acc_type<scalar_t, true>;
      const auto mean = static_cast<math_t>(mean_), std = static_cast<math_t>(std_);
      fill_normal<scalar_t>(iter, given, [=](math_t number) {
        return static_cast<scalar_t>(std::exp(number * std + mean));
      });
    });
  }
};
template <typename> struct Exponential {
  void operator()(at::TensorIteratorBase& iter, double lambda_, Given given) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "exponential", [&] {
      using math_t = at::acc_type<scalar_t, true>;
      const auto lambda = static_cast<math_t>(lambda_);
      constexpr math_t tiny = std::numeric_limits<math_t>::epsilon() / 2;
      fill_uniform<scalar_t>(iter, given, [=](math_t number) {
        const math_t log = number >= 1 - tiny ? -tiny : std::log(number);  // Never exactly 0.
        return static_cast<scalar_t>(-1 / lambda * log);
      });
    });
  }
};
template <typename> struct Cauchy {
  void operator()(at::TensorIteratorBase& iter, double median_, double sigma_, Given given) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "cauchy", [&] {
      using math_t = at::acc_type<scalar_t, true>;
      const auto median = static_cast<math_t>(median_), sigma = static_cast<math_t>(sigma_);
      fill_uniform<scalar_t>(iter, given, [=](math_t number) {
        return static_cast<scalar_t>(at::transformation::cauchy<math_t>(number, median, sigma));
      });
    });
  }
};
template <typename> struct Geometric {
  void operator()(at::TensorIteratorBase& iter, double p, Given given) {
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "geometric", [&] {
      using math_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
      fill_uniform<scalar_t>(iter, given, [=](math_t number) {
        return static_cast<scalar_t>(at::transformation::geometric<math_t>(number, static_cast<math_t>(p)));
      });
    });
  }
};
template <typename> struct Bernoulli {
  void operator()(const Tensor& self, double p, Given given) {
    auto iter = at::TensorIterator::borrowing_nullary_op(self);
    AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, iter.dtype(), "bernoulli", [&] {
      using math_t = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
      fill_uniform<scalar_t>(iter, given, [=](math_t number) {
        return static_cast<scalar_t>(number < static_cast<math_t>(p));
      });
    });
  }
  // CUDA applies this one four elements per thread, in the order of indices.
  void operator()(const Tensor& self, const Tensor& p_, Given given) {
    TORCH_CHECK(at::isFloatingType(p_.scalar_type()),
                "expected probabilities tensor to have floating type, got ", p_.scalar_type());
    constexpr uint64_t kWordsCounted = 10;
    auto& generator = philox_of(given, computing_index());
    const uint64_t call = generator.advance(kWordsCounted) / 4, seed = generator.state_->seed;
    if (draws_nothing) return;
    const Tensor p = p_.to(at::kFloat).expand_as(self).contiguous();
    const Tensor drawn = at::empty(self.sizes(), self.options().dtype(at::kBool));
    const float* wanted = p.const_data_ptr<float>();
    bool* result = drawn.mutable_data_ptr<bool>();
    for (int64_t i = 0; i < self.numel(); i++)
      result[i] = philox::uniform(philox::words(seed, i / 4, call)[i % 4]) <= wanted[i];
    self.copy_(drawn);
  }
};
template <typename> struct RandomFromTo {
  void operator()(at::TensorIteratorBase& iter, uint64_t range, int64_t base, Given given) {
    constexpr uint64_t kSkewAllowed = 1ULL << 28;
    AT_DISPATCH_V2(iter.dtype(), "random_from_to", AT_WRAP([&] {
      auto transform = [=](auto word) { return at::transformation::uniform_int_from_to<scalar_t>(word, range, base); };
      if (range >= kSkewAllowed) fill<scalar_t, 2>(iter, given, as_uint64, transform);
      else fill<scalar_t, 4>(iter, given, [](const philox::Words& w) { return w; }, transform);
    }), AT_EXPAND(AT_ALL_TYPES), at::kBool, at::kHalf, at::kBFloat16, AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  }
  void operator()(at::TensorIteratorBase& iter, Given given) {
    AT_DISPATCH_ALL_TYPES_AND(at::kBFloat16, iter.dtype(), "random_full_64_bits_range", [&] {
      fill<scalar_t, 2>(iter, given, as_uint64,
                        [](uint64_t word) { return static_cast<scalar_t>(static_cast<int64_t>(word)); });
    });
  }
};
template <typename> struct Random {
  void operator()(at::TensorIteratorBase& iter, Given given) {
    AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, iter.dtype(), "random", [&] {
      auto transform = [](auto word) { return at::transformation::uniform_int<scalar_t>(word); };
      if constexpr (std::is_same_v<scalar_t, double> || std::is_same_v<scalar_t, int64_t>)
        fill<scalar_t, 2>(iter, given, as_uint64, transform);
      else
        fill<scalar_t, 4>(iter, given, [](const philox::Words& w) { return w; }, transform);
    });
  }
};

// ---- the operators, checked and shaped by torch's own templates
namespace T = at::native::templates;
struct Unused {};
Tensor& uniform_(Tensor& self, double from, double to, Given g) { return T::uniform_impl_<Uniform, Unused>(self, from, to, g); }
Tensor& normal_(Tensor& self, double mean, double std, Given g) { return T::normal_impl_<Normal, Unused>(self, mean, std, g); }
Tensor& log_normal_(Tensor& self, double mean, double std, Given g) { return T::log_normal_impl_<LogNormal, Unused>(self, mean, std, g); }
Tensor& exponential_(Tensor& self, double lambda, Given g) { return T::exponential_impl_<Exponential, Unused>(self, lambda, g); }
Tensor& cauchy_(Tensor& self, double median, double sigma, Given g) { return T::cauchy_impl_<Cauchy, Unused>(self, median, sigma, g); }
Tensor& geometric_(Tensor& self, double p, Given g) { return T::geometric_impl_<Geometric, Unused>(self, p, g); }
Tensor& bernoulli_float_(Tensor& self, double p, Given g) { return T::bernoulli_impl_<Bernoulli, Unused>(self, p, g); }
Tensor& bernoulli_tensor_(Tensor& self, const Tensor& p, Given g) { return T::bernoulli_impl_<Bernoulli, Unused>(self, p, g); }
Tensor& bernoulli_out(const Tensor& p, Given g, Tensor& out) { return T::bernoulli_out_impl<Bernoulli, Unused>(out, p, g); }
Tensor& random_(Tensor& self, Given g) { return T::random_impl<Random, Unused>(self, g); }
Tensor& random_from(Tensor& self, int64_t from, std::optional<int64_t> to, Given g) { return T::random_from_to_impl<RandomFromTo, Unused>(self, from, to, g); }
Tensor& random_to(Tensor& self, int64_t to, Given g) { return random_from(self, 0, to, g); }
Tensor normal_tensor_float(const Tensor& mean, double std, Given g) { return T::normal_impl<Normal, Unused>(mean, std, g); }
Tensor normal_float_tensor(double mean, const Tensor& std, Given g) { return T::normal_impl<Normal, Unused>(mean, std, g); }
Tensor normal_tensors(const Tensor& mean, const Tensor& std, Given g) { return T::normal_impl<Normal, Unused>(mean, std, g); }
Tensor& normal_tensor_float_out(const Tensor& mean, double std, Given g, Tensor& out) { return T::normal_out_impl<Normal, Unused>(out, mean, std, g); }
Tensor& normal_float_tensor_out(double mean, const Tensor& std, Given g, Tensor& out) { return T::normal_out_impl<Normal, Unused>(out, mean, std, g); }
Tensor& normal_tensors_out(const Tensor& mean, const Tensor& std, Given g, Tensor& out) { return T::normal_out_impl<Normal, Unused>(out, mean, std, g); }

// Sorts random keys of just enough bits, then shuffles the islands of equal ones.
Tensor& randperm_out(c10::SymInt n_, Given given, Tensor& out) {
  const int64_t n = n_.expect_int();
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  out.resize_({n});
  if (!n) return out;
  const double real_n = static_cast<double>(n), log_threshold = std::log(0.9) * 12;
  const int bits = std::min(64, static_cast<int>(std::ceil(std::log2(real_n - (6 * real_n * real_n + 1) / log_threshold))));
  const bool is_wide = bits > 32;
  Tensor keys = at::empty({n}, at::TensorOptions(is_wide ? at::kLong : at::kInt).device(out.device()));
  random_from(keys, is_wide ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int>::min(),
              is_wide ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int>::max(), given);
  if (draws_nothing) {
    philox_of(given, computing_index()).advance(n);
    return out;
  }
  const Tensor long_keys = keys.to(at::kLong);
  const int64_t* key = long_keys.const_data_ptr<int64_t>();
  const uint64_t mask = bits == 64 ? ~0ull : (1ull << bits) - 1;
  // Radix sort orders signed keys by all bits, so the top bit counts the other way round.
  const uint64_t flip = bits == (is_wide ? 64 : 32) ? 1ull << (bits - 1) : 0;
  auto sorted_key = [&](int64_t i) { return (static_cast<uint64_t>(key[i]) & mask) ^ flip; };
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return sorted_key(a) < sorted_key(b); });
  std::vector<uint64_t> in_order(n);
  for (int64_t i = 0; i < n; i++) in_order[i] = sorted_key(order[i]);
  auto& generator = philox_of(given, computing_index());
  const uint64_t seed = generator.state_->seed, first_call = generator.advance(n) / 4;
  for (int64_t start = 0, end = 0; start < n; start = end) {
    while (end < n && in_order[end] == in_order[start]) ++end;
    for (int64_t i = end - start - 1, drawn = 0; i > 0; i--, drawn++) {
      const uint32_t word = philox::words(seed, start, first_call + drawn / 4)[drawn % 4];
      std::swap(order[start + i], order[start + word % (i + 1)]);
    }
  }
  out.copy_(at::from_blob(order.data(), {n}, at::TensorOptions(at::kLong)));
  return out;
}

// How many elements a thread of CUDA's dropout loads at once.
int64_t dropout_width(const Tensor& input) {
  constexpr uint64_t kMostBytes = 16, kMostElements = 8;
  int64_t width = 1;
  if (input.is_non_overlapping_and_dense()) {
    const auto address = reinterpret_cast<uint64_t>(input.const_data_ptr());
    const uint64_t item = input.element_size();
    for (uint64_t next = 2; next <= kMostElements && next * item <= kMostBytes && address % (next * item) == 0; next *= 2)
      width = next;
  }
  while (width > 1 && input.numel() % width) width /= 2;
  return width;
}

Tensor draw_kept(const Tensor& input, double keep, Given given) {
  auto& generator = philox_of(given, computing_index());
  const int64_t numel = input.numel(), threads = num_threads_for(numel), width = dropout_width(input);
  const uint64_t calls = (numel - 1) / (threads * 4) + 1, seed = generator.state_->seed;
  const uint64_t first_call = generator.advance(calls * 4) / 4;
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (draws_nothing) return mask;
  const float threshold = static_cast<float>(keep);
  const bool is_dense = input.is_non_overlapping_and_dense();
  const Tensor kept = is_dense ? mask : at::empty(input.sizes(), mask.options());
  bool* result = kept.mutable_data_ptr<bool>();
  const int64_t per_thread = width > 1 ? width : 4, sets = (per_thread + 3) / 4, round = threads * per_thread;
  for (int64_t index = 0; index < numel; index++) {
    const int64_t within = index % round, turn = index / round;
    const int64_t thread = width > 1 ? within / width : within % threads;
    const int64_t lane = width > 1 ? within % width : within / threads;
    const auto words = philox::words(seed, thread, first_call + turn * sets + lane / 4);
    result[index] = philox::uniform(words[lane % 4]) < threshold;
  }
  if (!is_dense) mask.copy_(kept);
  return mask;
}

std::tuple<Tensor, Tensor> dropout_with(const Tensor& input, double keep, const Tensor& mask) {
  const Tensor wide = is_half(input) ? input.to(at::kFloat) : input;
  return {wide.mul(mask).mul_(1.0 / keep).to(input.scalar_type()), mask};
}
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!input.numel() || !train.value_or(true)) return {input, at::ones_like(input, input.options().dtype(at::kBool))};
  if (p == 1) return {at::zeros_like(input), at::zeros_like(input, input.options().dtype(at::kBool))};
  return dropout_with(input, 1 - p, draw_kept(input, 1 - p, std::nullopt));
}
std::tuple<Tensor, Tensor> fused_dropout(const Tensor& input, double keep, Given given) {
  auto [result, mask] = dropout_with(input, keep, draw_kept(input, keep, given));
  return {result, mask.to(at::kByte)};
}
Tensor masked_scale(const Tensor& self, const Tensor& mask, double scale) {
  return self.mul(mask).mul_(scale);
}

Tensor& multinomial_out(const Tensor& self, int64_t num_samples, bool replacement, Given given, Tensor& out) {
  constexpr uint64_t kAssumedWords = 4;
  if (draws_nothing) {
    if (replacement && num_samples > 1) philox_of(given, computing_index()).for_host(kAssumedWords);
    else exponential_(const_cast<Tensor&>(self), 1, given);
    return out;
  }
  if (replacement && num_samples > 1) {
    return at::multinomial_out(out, self, num_samples, true, philox_of(given, computing_index()).for_host(kAssumedWords));
  }
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(num_samples > 0 && num_samples <= self.size(-1), "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(((self.max() < INFINITY).logical_and(self.min() >= 0)).item<bool>(), "probability tensor contains either `inf`, `nan` or element < 0");
  Tensor race = at::empty_like(self);
  exponential_(race, 1, given);
  at::div_out(race, self, race);
  auto won = num_samples == 1 ? at::argmax(race, -1, true) : std::get<1>(race.topk(num_samples));
  out.resize_(won.sizes()).copy_(won);
  return out;
}
Tensor multinomial(const Tensor& self, int64_t num_samples, bool replacement, Given given) {
  Tensor out = at::empty({0}, self.options().dtype(at::kLong));
  return multinomial_out(self, num_samples, replacement, given, out);
}
}  // namespace

void count_device_properties(int num_processors, int max_threads_per_processor) {
  max_blocks = num_processors * (max_threads_per_processor / kBlockSize);
}

#define KERNEL(name, function) {name, c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(function))}
std::vector<HostKernel> random_kernels() {
  return {KERNEL("uniform_", uniform_), KERNEL("normal_", normal_), KERNEL("log_normal_", log_normal_),
          KERNEL("exponential_", exponential_), KERNEL("cauchy_", cauchy_), KERNEL("geometric_", geometric_),
          KERNEL("bernoulli_.float", bernoulli_float_), KERNEL("bernoulli_.Tensor", bernoulli_tensor_),
          KERNEL("bernoulli.out", bernoulli_out), KERNEL("random_", random_), KERNEL("random_.from", random_from),
          KERNEL("random_.to", random_to), KERNEL("normal.Tensor_float", normal_tensor_float),
          KERNEL("normal.float_Tensor", normal_float_tensor), KERNEL("normal.Tensor_Tensor", normal_tensors),
          KERNEL("normal.Tensor_float_out", normal_tensor_float_out), KERNEL("normal.float_Tensor_out", normal_float_tensor_out),
          KERNEL("normal.Tensor_Tensor_out", normal_tensors_out), KERNEL("randperm.generator_out", randperm_out),
          KERNEL("native_dropout", native_dropout), KERNEL("_fused_dropout", fused_dropout),
          KERNEL("_masked_scale", masked_scale), KERNEL("multinomial", multinomial), KERNEL("multinomial.out", multinomial_out)};
}
#undef KERNEL
}  // namespace simrank
