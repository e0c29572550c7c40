// What the rest of torch's C++ asks CUDA for: torch keeps one data-less object for it.
#include "simulated.h"
#include <ATen/detail/CUDAHooksInterface.h>

namespace simrank {
namespace {
constexpr long kCudaVersion = 12080;    // Assumed: 12.8, which torch 2.13 wheels were built for.
constexpr long kCudnnVersion = 91000;

struct Hooks final : at::CUDAHooksInterface {
  void init() const override { rank(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasCUDA() const override { return deviceCount() > 0; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override {
    Rank* self = bound_rank();
    return self && self->is_initialized;
  }
  DeviceIndex deviceCount() const override {
    Rank* self = bound_rank();
    return self ? self->num_devices : 0;
  }
  int getNumGPUs() const override { return deviceCount(); }
  DeviceIndex current_device() const override { return getCurrentDevice(); }
  DeviceIndex getCurrentDevice() const override { return rank().current; }
  void setCurrentDevice(DeviceIndex to) const override { rank().current = device_or_current(to); }
  DeviceIndex exchangeDevice(DeviceIndex to) const override {
    DeviceIndex before = rank().current;
    if (to >= 0) rank().current = device_or_current(to);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex to) const override { return exchangeDevice(to); }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override { return new_generator(device); }
  Device getDeviceFromPtr(void* address) const override {
    Rank& self = rank();
    int owner = global_device_of(address) - self.first_device;
    bool is_ours = owner >= 0 && owner < self.num_devices;
    return {c10::kCUDA, is_ours ? static_cast<DeviceIndex>(owner) : self.current};
  }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  void deviceSynchronize(DeviceIndex device) const override {
    c10::impl::getDeviceGuardImpl(c10::kCUDA)->synchronizeDevice(device);
  }
  long versionCuDNN() const override { return kCudnnVersion; }
  long versionRuntimeCuDNN() const override { return kCudnnVersion; }
  long versionCUDART() const override { return kCudaVersion; }
  std::string showConfig() const override { return "  - CUDA devices simulated by simrank\n"; }
};

void* replaced_table = nullptr;
// torch has asked its registry once, perhaps before us, and keeps that object: it has no data, so
// only its table of functions is exchanged. (Registering ours would hide a CUDA build's own.)
void*& table_of(const at::CUDAHooksInterface& hooks) {
  return *reinterpret_cast<void**>(const_cast<at::CUDAHooksInterface*>(&hooks));
}
}  // namespace

void install_hooks() {
  static_assert(sizeof(at::CUDAHooksInterface) == sizeof(void*), "the hooks have data");
  static Hooks ours;
  auto& table = table_of(at::detail::getCUDAHooks());
  if (table == table_of(ours)) return;
  replaced_table = table;
  table = table_of(ours);
}
void restore_hooks() {
  if (replaced_table) table_of(at::detail::getCUDAHooks()) = std::exchange(replaced_table, nullptr);
}
}  // namespace simrank
