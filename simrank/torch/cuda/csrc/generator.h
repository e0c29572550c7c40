// CUDA's generator: a seed and an offset into the Philox sequence, 16 bytes of state.
#pragma once
#include "simulated.h"

namespace simrank {

struct PhiloxState {
  uint64_t seed = c10::default_rng_seed_val, offset = 0;
};

struct PhiloxGenerator final : c10::GeneratorImpl {
  std::shared_ptr<PhiloxState> state_;  // Generators may share it: see graphsafe_get_state.
  explicit PhiloxGenerator(DeviceIndex device)
      : GeneratorImpl(Device(c10::kCUDA, device), DispatchKeySet(DispatchKey::CUDA)),
        state_(std::make_shared<PhiloxState>()) {}
  // The offset of the next draw; later ones begin behind it. CUDA counts in whole groups of four.
  uint64_t advance(uint64_t num_words) { return std::exchange(state_->offset, state_->offset + (num_words + 3) / 4 * 4); }
  // A CPU generator for one operation whose draws are not CUDA's.
  at::Generator for_host(uint64_t num_words);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { state_->offset = offset; }
  uint64_t get_offset() const override { return state_->offset; }
  uint64_t current_seed() const override { return state_->seed; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& from) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  PhiloxGenerator* clone_impl() const override;
};

PhiloxGenerator& philox_of(const std::optional<at::Generator>& given, DeviceIndex device);
}  // namespace simrank
