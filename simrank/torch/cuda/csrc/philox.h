// Philox 4x32-10 as cuRAND has it, and the numbers that cuRAND makes of its words.
// Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the
// conversions are those that NVIDIA documents for curand_uniform4, curand_normal4 and the doubles.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

namespace simrank::philox {

using Words = std::array<uint32_t, 4>;

// The `call`-th group of four words of a thread (its subsequence).
inline Words words(uint64_t seed, uint64_t thread, uint64_t call) {
  uint32_t c0 = call, c1 = call >> 32, c2 = thread, c3 = thread >> 32;
  uint32_t k0 = seed, k1 = seed >> 32;
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {c0, c1, c2, c3};
}

constexpr float kInv32 = 2.3283064e-10f;
constexpr float kInv32TwoPi = 2.3283064e-10f * 6.2831855f;
constexpr double kInv53 = 1.1102230246251565e-16;

inline float uniform(uint32_t x) { return x * kInv32 + kInv32 / 2.0f; }
inline double uniform(uint32_t x, uint32_t y) {
  return static_cast<double>(x ^ (static_cast<uint64_t>(y) << 21)) * kInv53 + kInv53 / 2.0;
}
inline void normal(uint32_t x, uint32_t y, float* result) {
  const float u = uniform(x), v = y * kInv32TwoPi + kInv32TwoPi / 2.0f;
  const float radius = std::sqrt(-2.0f * std::log(u));
  result[0] = radius * std::sin(v);
  result[1] = radius * std::cos(v);
}
inline void normal(const Words& w, double* result) {
  const double u = uniform(w[0], w[1]);
  const double v = static_cast<double>(w[2] ^ (static_cast<uint64_t>(w[3]) << 21)) * (kInv53 * 2) + kInv53;
  const double radius = std::sqrt(-2.0 * std::log(u));
  result[0] = radius * std::sin(v * M_PI);
  result[1] = radius * std::cos(v * M_PI);
}
inline uint64_t joined(uint32_t high, uint32_t low) { return (uint64_t{high} << 32) | low; }

}  // namespace simrank::philox
