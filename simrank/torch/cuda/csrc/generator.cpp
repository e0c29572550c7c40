#include "generator.h"
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

namespace simrank {

void PhiloxGenerator::set_current_seed(uint64_t seed) {
  state_->seed = seed;
  state_->offset = 0;
}

uint64_t PhiloxGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom(true));
  return state_->seed;
}

at::Generator PhiloxGenerator::for_host(uint64_t num_words) {
  uint64_t mixed = state_->seed * 0x9E3779B97F4A7C15ull + advance(num_words) + 0x632BE59BD9B4E019ull;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;  // splitmix64
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
  return at::detail::createCPUGenerator((mixed ^ (mixed >> 31)) & 0xFFFFFFFFu);
}

void PhiloxGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  constexpr int64_t kSeedOnly = 8, kWhole = 16;
  TORCH_CHECK(state.numel() == kWhole || state.numel() == kSeedOnly, "RNG state is wrong size");
  auto* words = static_cast<const uint64_t*>(state.data());
  state_->seed = words[0];
  state_->offset = state.numel() == kWhole ? words[1] : 0;
}

c10::intrusive_ptr<c10::TensorImpl> PhiloxGenerator::get_state() const {
  auto state = at::detail::empty_cpu({16}, at::kByte);
  auto* words = static_cast<uint64_t*>(state.mutable_data_ptr());
  words[0] = state_->seed;
  words[1] = state_->offset;
  return state.getIntrusivePtr();
}

void PhiloxGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& from) {
  auto* other = dynamic_cast<PhiloxGenerator*>(from.get());
  TORCH_CHECK(other, "the state is not one of a CUDA generator");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> PhiloxGenerator::graphsafe_get_state() const {
  auto other = c10::make_intrusive<PhiloxGenerator>(device_.index());
  other->state_ = state_;
  return other;
}

PhiloxGenerator* PhiloxGenerator::clone_impl() const {
  auto* copy = new PhiloxGenerator(device_.index());
  *copy->state_ = *state_;
  return copy;
}

const at::Generator& default_generator(DeviceIndex index) {
  const DeviceIndex device = device_or_current(index);
  Rank& self = rank();
  auto& generator = self.generators[device];
  if (!generator.defined()) {  // CUDA draws this seed: no two devices or processes have the same.
    generator = at::make_generator<PhiloxGenerator>(device);
    generator.set_current_seed(self.seed + (static_cast<uint64_t>(device + 1) << 47));
  }
  return generator;
}

at::Generator new_generator(DeviceIndex index) {
  return at::make_generator<PhiloxGenerator>(device_or_current(index));
}

PhiloxGenerator& philox_of(const std::optional<at::Generator>& given, DeviceIndex device) {
  const at::Generator& generator = given && given->defined() ? *given : default_generator(device);
  TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
              generator.device().type(), "'");
  return *static_cast<PhiloxGenerator*>(generator.unsafeGetGeneratorImpl());
}
}  // namespace simrank
