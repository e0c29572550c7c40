// torch.distributed's C++ registers by device: DDP's timer and symmetric memory.
#include "caching.h"
#include "simulated.h"
#include <cstring>
#include <map>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

extern "C" void simrank_pending_remove(int64_t id);

namespace simrank {
namespace {
namespace symmetric = c10d::symmetric_memory;
enum Signal : int { BARRIER, PUT, WAIT };

struct Timer final : c10d::Timer {
  explicit Timer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto from = getTimestamp(start), to = getTimestamp(end);
    if (!from || !to || *to < *from) return std::nullopt;
    return *to - *from;
  }
};

void* allocate(int device, size_t size) {
  Rank& self = rank();
  return memory_of(self.first_device + device).allocate(size, {self.streams[device], self.tag});
}

// A buffer and its signal pad, which live as long as anybody's handle: peers may use them longer.
struct Memory {
  void *buffer, *pad;
  bool owns_buffer;  // False: it is a pool's, and stays.
  Memory(void* buffer, void* pad, bool owns_buffer) : buffer(buffer), pad(pad), owns_buffer(owns_buffer) {}
  Memory(const Memory&) = delete;
  ~Memory() {
    for (void* address : {pad, buffer}) {
      simrank_pending_remove(-reinterpret_cast<int64_t>(address));  // As the simulator marks shared memory.
      if (address == pad || owns_buffer) free_device(address);
    }
  }
};

struct Rendezvous final : symmetric::SymmetricMemory {
  std::vector<void*> buffers, pads;
  std::vector<std::shared_ptr<Memory>> memory;
  std::vector<int> global_ranks;
  std::string group;
  uint64_t multicast = 0;
  int own_rank = 0, world_size = 1, device = 0;
  size_t size = 0;
  void** table = nullptr;  // Both lists of addresses, in the device's own memory.
  ~Rendezvous() override { if (table) free_device(table); }
  void** tables() {
    if (table) return table;
    const size_t bytes = world_size * sizeof(void*);
    table = static_cast<void**>(allocate(device, 2 * bytes));
    std::memcpy(table, buffers.data(), bytes);
    std::memcpy(table + world_size, pads.data(), bytes);
    return table;
  }
  void signal(Signal what, int peer, int channel, size_t timeout_ms) {
    auto address = reinterpret_cast<uint64_t>(buffers[own_rank]);
    if (callbacks.on_signal &&
        callbacks.on_signal(address, group.c_str(), what, peer, channel, static_cast<int64_t>(timeout_ms)) < 0)
      raise_from_python(CALLBACK_RAISED);
  }
  std::vector<void*> get_buffer_ptrs() override { return buffers; }
  std::vector<void*> get_signal_pad_ptrs() override { return pads; }
  void** get_buffer_ptrs_dev() override { return tables(); }
  void** get_signal_pad_ptrs_dev() override { return tables() + world_size; }
  size_t get_buffer_size() override { return size; }
  size_t get_offset() override { return 0; }
  bool has_multicast_support() override { return multicast != 0; }
  void* get_multicast_ptr() override { return reinterpret_cast<void*>(multicast); }
  void barrier(int channel, size_t timeout_ms) override { signal(BARRIER, -1, channel, timeout_ms); }
  void put_signal(int to, int channel, size_t timeout_ms) override { signal(PUT, to, channel, timeout_ms); }
  void wait_signal(int from, int channel, size_t timeout_ms) override { signal(WAIT, from, channel, timeout_ms); }
  int get_rank() override { return own_rank; }
  int get_world_size() override { return world_size; }
  c10::Device get_device() override { return {c10::kCUDA, static_cast<DeviceIndex>(device)}; }
  const std::vector<int>& get_rank_to_global_rank() override { return global_ranks; }
  int* get_rank_to_global_rank_dev() override { return global_ranks.data(); }
  bool world_within_direct_access() override { return true; }
};

struct Allocator final : symmetric::SymmetricMemoryAllocator {
  struct Allocation {
    size_t size;
    int device;
    std::shared_ptr<Memory> memory;
    std::string group;  // As it was allocated for one, or empty.
    std::map<std::string, c10::intrusive_ptr<symmetric::SymmetricMemory>> met;  // By group.
  };
  std::map<void*, Allocation> live;
  std::map<void*, std::vector<std::shared_ptr<Memory>>> held;  // By a member's buffer, until it has its handle.
  void* alloc(size_t size, int device, const std::optional<std::string>& group) override {
    device = device_or_current(static_cast<DeviceIndex>(device));
    void* address = allocate(device, size);
    memory_of(global_device_of(address)).count(address);
    add(address, size, device, group.value_or(""), true);
    return address;
  }
  void add(void* address, size_t size, int device, std::string group, bool owns_buffer) {
    const size_t pad_size = symmetric::get_signal_pad_size();
    void* pad = allocate(device, pad_size);
    std::memset(pad, 0, pad_size);
    live[address] = {size, device, std::make_shared<Memory>(address, pad, owns_buffer), std::move(group), {}};
  }
  void free(void* address) override {
    auto found = live.find(address);
    if (found == live.end()) return;
    Allocation last = std::move(found->second);
    live.erase(found);
  }
  size_t get_alloc_size(void* address) override { return live.at(address).size; }
  bool has_allocation(void* address) override { return live.count(address) > 0; }
  c10::intrusive_ptr<symmetric::SymmetricMemory> rendezvous(
      void* address, const std::optional<std::string>& group) override {
    auto found = live.upper_bound(address);
    if (found == live.begin()) return {};
    auto& [start, allocation] = *std::prev(found);
    if (static_cast<char*>(address) >= static_cast<char*>(start) + allocation.size) return {};
    const std::string name = group.value_or(allocation.group);
    auto& met = allocation.met[name];
    if (!met) met = meet(start, allocation, name);
    return met;
  }
  c10::intrusive_ptr<symmetric::SymmetricMemory> meet(void* start, const Allocation& allocation,
                                                      const std::string& group) {
    constexpr int kMostRanks = 4096;
    auto made = c10::make_intrusive<Rendezvous>();
    std::vector<uint64_t> buffers(kMostRanks), pads(kMostRanks);
    std::vector<int> ranks(kMostRanks);
    buffers[0] = reinterpret_cast<uint64_t>(start);
    pads[0] = reinterpret_cast<uint64_t>(allocation.memory->pad);
    if (callbacks.on_rendezvous &&
        callbacks.on_rendezvous(buffers[0], group.c_str(), &made->own_rank, &made->world_size,
                                buffers.data(), pads.data(), ranks.data(), kMostRanks, &made->multicast) < 0)
      raise_from_python(CALLBACK_RAISED);
    made->group = group;
    made->memory = std::move(held[start]);
    held.erase(start);
    for (int i = 0; i < made->world_size; i++) {
      made->buffers.push_back(reinterpret_cast<void*>(buffers[i]));
      made->pads.push_back(reinterpret_cast<void*>(pads[i]));
      made->global_ranks.push_back(ranks[i]);
    }
    made->device = allocation.device;
    made->size = allocation.size;
    return made;
  }
  bool has_multicast = false;
  bool has_multicast_support(int) override { return has_multicast; }
  c10::DeviceType supported_device_type() override { return c10::kCUDA; }
  std::string name() override { return "CUDA"; }
};
// The same memory under the name of another of torch's backends.
struct Renamed final : symmetric::SymmetricMemoryAllocator {
  c10::intrusive_ptr<Allocator> own;
  std::string given;
  Renamed(c10::intrusive_ptr<Allocator> own_, std::string given_) : own(std::move(own_)), given(std::move(given_)) {}
  void* alloc(size_t size, int device, const std::optional<std::string>& group) override {
    return own->alloc(size, device, group);
  }
  void free(void* address) override { own->free(address); }
  size_t get_alloc_size(void* address) override { return own->get_alloc_size(address); }
  c10::intrusive_ptr<symmetric::SymmetricMemory> rendezvous(void* address,
                                                            const std::optional<std::string>& group) override {
    return own->rendezvous(address, group);
  }
  bool has_multicast_support(int device) override { return own->has_multicast_support(device); }
  c10::DeviceType supported_device_type() override { return own->supported_device_type(); }
  std::string name() override { return given; }
  bool has_allocation(void* address) override { return own->has_allocation(address); }
};
Allocator* allocator = nullptr;
}  // namespace

void become_symmetric(void* address, size_t size, int device) {
  if (!allocator->has_allocation(address))
    allocator->add(address, size, device - rank().first_device, "", false);
}
}  // namespace simrank

extern "C" {
void simrank_register_c10d() {
  using namespace simrank;
  c10d::TimerRegistry()->Register(
      c10::kCUDA, [](c10::Device device) -> std::unique_ptr<c10d::Timer> { return std::make_unique<Timer>(device); },
      c10::REGISTRY_PREFERRED);
  auto made = c10::make_intrusive<Allocator>();
  allocator = made.get();
  symmetric::register_availability("CUDA", made);
  symmetric::register_availability("NCCL", c10::make_intrusive<Renamed>(made, "NCCL"));
  symmetric::register_allocator(c10::kCUDA, made);
}
// Whether the devices have addresses that stand for all of a group's buffers.
void simrank_multicast(int has_multicast) { simrank::allocator->has_multicast = has_multicast != 0; }
// Keeps the buffers of all members for each of them: some may end before others have their handles.
void simrank_hold(const uint64_t* addresses, int num_addresses) {
  using namespace simrank;
  std::vector<std::shared_ptr<Memory>> all;
  for (int i = 0; i < num_addresses; i++)
    all.push_back(allocator->live.at(reinterpret_cast<void*>(addresses[i])).memory);
  for (auto& memory : all) allocator->held[memory->buffer] = all;
}
void simrank_forget_held() {
  simrank::allocator->held.clear();
  // What pools have goes with their devices.
  std::erase_if(simrank::allocator->live, [](auto& each) { return !each.second.memory->owns_buffer; });
}
// The signal pad of a symmetric allocation, or 0.
uint64_t simrank_signal_pad(uint64_t address) {
  auto found = simrank::allocator->live.find(reinterpret_cast<void*>(address));
  return found == simrank::allocator->live.end() ? 0 : reinterpret_cast<uint64_t>(found->second.memory->pad);
}
}
