// Storages on simulated devices, and the switch that puts what kernels allocate on the device.
#include "caching.h"
#include "fallback.h"
#include "simulated.h"
#include "values.h"
#include <c10/core/CPUAllocator.h>
#include <cstring>

namespace simrank {

namespace {
struct Layout {
  int num_devices = 0, num_spans = 0;  // Fewer spans, where few devices are used: by their first use.
  uint64_t base = 0, span = 1, device_bytes = 0;
};
Layout layout;
bool fills_fresh = false;
int64_t simulations = 0;
std::vector<std::unique_ptr<DeviceMemory>> devices;
std::vector<int> device_of_span;  // -1: not used yet.
// Devices of earlier simulations, of which tensors are still alive: they keep their addresses.
std::vector<std::unique_ptr<DeviceMemory>> retired;
c10::Allocator* host_allocator = nullptr;
thread_local int computing_device = -1;
thread_local int64_t computing_stream = 0;
thread_local Purpose computing_purpose = Purpose::HOST;
bool has_ranks_host_memory = false;
// What a thread allocates from on a device, the innermost last (torch.cuda.use_mem_pool).
struct InUse {
  int device;
  std::shared_ptr<Pools> pools;
};
thread_local std::vector<InUse> pools_in_use;
std::map<int64_t, std::vector<std::shared_ptr<Pools>>> kept_pools;  // By name, while the program has it.
Pools* pools_on(int device) {
  for (auto each = pools_in_use.rbegin(); each != pools_in_use.rend(); ++each)
    if (each->device == device) return each->pools.get();
  return nullptr;
}
constexpr size_t kTiny = 512;  // Bytes; assumed.

// What the DataPtr of a device's storage owns: the storage as CPU kernels see it.
struct Holding {
  c10::intrusive_ptr<c10::StorageImpl> host;
};
void drop_holding(void* holding) { delete static_cast<Holding*>(holding); }
Holding* holding_of(const c10::StorageImpl* storage) {
  if (storage->data_ptr().get_deleter() != &drop_holding) return nullptr;
  return static_cast<Holding*>(storage->data_ptr().get_context());
}

// What a kernel needs only while it runs and CUDA's does not: no device's statistics show it.
DeviceMemory& scratch() {
  constexpr size_t kSpan = 1ull << 40;  // Assumed to be enough; nothing of it is mapped before it is used.
  static DeviceMemory memory(-1, 0, kSpan, kSpan, false);
  return memory;
}

}  // namespace
DeviceMemory& ranks_host_memory() {
  constexpr size_t kSpan = 8ull << 40;  // Assumed to be enough.
  static DeviceMemory memory(-1, 0, kSpan, kSpan, true);
  has_ranks_host_memory = true;
  return memory;
}
bool is_ranks_host_memory(const void* address) {
  const auto start = reinterpret_cast<uintptr_t>(address);
  return has_ranks_host_memory && ranks_host_memory().overlaps(start, start + 1);
}
namespace {
DeviceMemory* owner_of(const void* address) {
  const int device = global_device_of(address);
  if (device >= 0) return devices[device].get();
  const auto start = reinterpret_cast<uintptr_t>(address);
  if (scratch().overlaps(start, start + 1)) return &scratch();
  if (is_ranks_host_memory(address)) return &ranks_host_memory();
  for (auto& memory : retired) if (memory->overlaps(start, start + 1)) return memory.get();
  return nullptr;
}
void free_either(void* address) {
  if (auto* owner = owner_of(address)) owner->free(address);
  else host_allocator->raw_deleter()(address);
}

// Stands before torch's CPU allocator: inside a kernel it gives the device's memory.
struct HostOrDevice final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (C10_LIKELY(computing_purpose == Purpose::HOST && !lacks_values)) return host_allocator->allocate(size);
    if (!size) return {nullptr, c10::kCPU};
    if (computing_purpose == Purpose::HOST) {
      if (!bound_rank()) return host_allocator->allocate(size);
      Request request{0};
      request.has_values = true;
      constexpr size_t kPage = 4096;  // Whole pages, which can be closed: nothing else lies there.
      void* address = ranks_host_memory().allocate((size + kPage - 1) / kPage * kPage, request);
      return {address, address, &free_device, c10::kCPU};
    }
    if (computing_purpose == Purpose::SCRATCH || (computing_purpose == Purpose::KERNEL && size <= kTiny)) {
      void* address = scratch().allocate(size, {0});
      return {address, address, &free_device, c10::kCPU};
    }
    DeviceMemory& memory = memory_of(computing_device);
    Request request{computing_stream};
    if (C10_UNLIKELY(!pools_in_use.empty())) request.pools = pools_on(computing_device);
    request.has_values = computing_purpose != Purpose::TENSOR;
    if (Rank* self = bound_rank()) {
      request.rank = self->tag;
      if (C10_UNLIKELY(self->capturing != nullptr)) request = self->capturing->request_to(memory, request);
    }
    void* address = memory.allocate(size, request);
    if (C10_UNLIKELY(request.pools && request.pools->is_symmetric))
      become_symmetric(address, memory.live(address)->size, computing_device);
    return {address, address, &free_device, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_either; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};
HostOrDevice host_or_device;

struct Pinned final : c10::Allocator {
  std::mutex mutex;  // A data loader pins on a thread of its own.
  std::map<uintptr_t, size_t> live;
  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};
Pinned pinned;
void drop_pinned(void* owner) {
  auto* memory = static_cast<c10::DataPtr*>(owner);
  {
    std::lock_guard<std::mutex> lock(pinned.mutex);
    pinned.live.erase(reinterpret_cast<uintptr_t>(memory->get()));
  }
  delete memory;
}
c10::DataPtr Pinned::allocate(size_t size) {
  auto* memory = new c10::DataPtr(c10::GetCPUAllocator()->allocate(std::max<size_t>(size, 1)));
  std::lock_guard<std::mutex> lock(mutex);
  live[reinterpret_cast<uintptr_t>(memory->get())] = std::max<size_t>(size, 1);
  return {memory->get(), memory, &drop_pinned, c10::kCPU};
}

struct CudaAllocator final : c10::DeviceAllocator {
  bool initialized() override {
    const Rank* self = bound_rank();
    return self && self->is_initialized;
  }
  void emptyCache(c10::MempoolId_t) override {
    Rank& self = rank();
    for (int i = 0; i < self.num_devices; i++) memory_of(self.first_device + i).release_cached();
  }
  void recordStream(const c10::DataPtr& data, Stream stream) override {
    record_use(data.get(), stream.device_index(), stream.id());
  }
  DeviceMemory& memory(DeviceIndex device) {
    return memory_of(rank().first_device + device_or_current(device));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return memory(device).stats;
  }
  void resetAccumulatedStats(DeviceIndex device) override { reset(device, false); }
  void resetPeakStats(DeviceIndex device) override { reset(device, true); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    auto& of = memory(device);
    return {of.limit() - std::min(of.limit(), of.reserved()), of.limit()};
  }
  void reset(DeviceIndex device, bool peak) {
    auto& of = memory(device);
    auto& stats = of.stats;
    of.most_allocated = std::max(of.most_allocated, stats.allocated_bytes[0].peak);
    of.most_reserved = std::max(of.most_reserved, stats.reserved_bytes[0].peak);
    for (auto* kind : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
                       &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                       &stats.inactive_split_bytes, &stats.requested_bytes})
      for (auto& stat : *kind) { if (peak) stat.reset_peak(); else stat.reset_accumulated(); }
    if (!peak) stats.num_alloc_retries = stats.num_ooms = 0;
  }
  c10::DataPtr allocate(size_t size) override { return allocate_on(rank().current, size); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};
CudaAllocator cuda_allocator;
}  // namespace

void free_device(void* address) { owner_of(address)->free(address); }
c10::DeviceAllocator* device_allocator() { return &cuda_allocator; }
c10::Allocator* pinned_allocator() { return &pinned; }
bool find_pinned(uint64_t address, uint64_t* start, uint64_t* size) {
  std::lock_guard<std::mutex> lock(pinned.mutex);
  auto after = pinned.live.upper_bound(address);
  if (after == pinned.live.begin()) return false;
  *start = std::prev(after)->first, *size = std::prev(after)->second;
  return address < *start + *size;
}
bool is_pinned(const void* address) {
  uint64_t start, size;
  return find_pinned(reinterpret_cast<uint64_t>(address), &start, &size);
}

int global_device_of(const void* address) {
  const uint64_t index = (reinterpret_cast<uint64_t>(address) - layout.base) / layout.span;
  return index < device_of_span.size() ? device_of_span[index] : -1;
}

DeviceMemory& memory_of(int device) {
  TORCH_CHECK(device >= 0 && device < layout.num_devices, "simrank: no device ", device);
  auto& memory = devices[device];
  if (!memory) {
    int span = device;
    if (layout.num_spans < layout.num_devices)
      span = static_cast<int>(std::find(device_of_span.begin(), device_of_span.end(), -1) -
                              device_of_span.begin());
    TORCH_CHECK(span < layout.num_spans, "simrank: device ", device, " is on a node without a rank");
    memory = std::make_unique<DeviceMemory>(device, layout.base + span * layout.span,
                                            layout.span, layout.device_bytes, lacks_values);
    device_of_span[span] = device;
  }
  return *memory;
}

// Starts from fresh devices. The addresses must be free: see simrank_free_base.
void configure_memory(int num_devices, int num_spans, uint64_t base, uint64_t span,
                      uint64_t device_bytes, bool fill_fresh) {
  layout = {num_devices, num_spans, base, span, device_bytes};
  device_of_span.assign(num_spans, -1);
  kept_pools.clear();
  devices.clear();
  devices.resize(num_devices);
  fills_fresh = fill_fresh;
  ++simulations;
}
int64_t num_simulations() { return simulations; }

uint64_t free_base(uint64_t base, uint64_t size) {
  for (auto& memory : devices) {
    if (!memory || !memory->num_live()) continue;
    memory->retire();
    retired.push_back(std::move(memory));
  }
  devices.clear();
  std::erase_if(retired, [](auto& memory) { return memory->num_live() == 0; });
  for (bool is_free = false; !is_free;) {
    is_free = true;
    for (auto& memory : retired)
      if (memory->overlaps(base, base + size)) { base = memory->end(); is_free = false; }
  }
  return base;
}

bool computes_for_host() { return computing_purpose == Purpose::HOST; }
ComputingFor::ComputingFor(int global_device, int64_t stream, Purpose purpose)
    : previous_device(computing_device), previous_stream(computing_stream), previous_purpose(computing_purpose) {
  computing_device = global_device;
  computing_stream = stream;
  computing_purpose = purpose;
}
ComputingFor::~ComputingFor() {
  computing_purpose = previous_purpose;
  computing_device = previous_device;
  computing_stream = previous_stream;
}

c10::intrusive_ptr<c10::StorageImpl> host_storage(size_t size) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size,
                                               host_or_device.allocate(size), &host_or_device, true);
}

c10::DataPtr hold(c10::intrusive_ptr<c10::StorageImpl> host, DeviceIndex device) {
  void* data = host->mutable_data();
  if (auto* owner = owner_of(data)) owner->count(data);
  return {data, new Holding{std::move(host)}, &drop_holding, Device(c10::kCUDA, device)};
}

c10::DataPtr allocate_on(DeviceIndex device, size_t size) {
  Rank& self = rank();
  self.is_initialized = true;
  c10::intrusive_ptr<c10::StorageImpl> host;
  {
    ComputingFor here(self.first_device + device, self.streams[device], Purpose::TENSOR);
    host = host_storage(size);
  }
  if (C10_UNLIKELY(fills_fresh) && size && size <= value_limits.any_bytes) std::memset(host->mutable_data(), 0xFF, size);
  return hold(std::move(host), device);
}

namespace {
c10::Storage storage_of(c10::DataPtr data, size_t size) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), size, std::move(data), &cuda_allocator, true));
}
}  // namespace
c10::Storage device_storage(DeviceIndex device, size_t size) {
  return storage_of(allocate_on(device, size), size);
}
c10::Storage as_device_storage(c10::intrusive_ptr<c10::StorageImpl> host, DeviceIndex device) {
  const size_t size = host->nbytes();
  // A kernel that has an allocator of its own, or lends memory: the device gets a copy.
  if (host->data() && !is_device_memory(host->data())) {  // A tensor of zeros may have no data.
    Rank& self = rank();
    ComputingFor here(self.first_device + device, self.streams[device], Purpose::TENSOR_WITH_VALUES);
    auto copy = hold(host_storage(size), device);
    std::memcpy(copy.mutable_get(), host->data(), size);
    return storage_of(std::move(copy), size);
  }
  return storage_of(hold(std::move(host), device), size);
}

bool is_device_memory(const void* address) {
  const auto* owner = address ? owner_of(address) : nullptr;
  return owner && owner != &scratch() && !is_ranks_host_memory(address);
}

c10::StorageImpl* host_of(const c10::StorageImpl* storage) {
  Holding* holding = holding_of(storage);
  return holding ? holding->host.get() : nullptr;
}

void follow_host(const c10::Storage& storage) {
  auto* of_device = storage.unsafeGetStorageImpl();
  auto* host = host_of(of_device);
  if (!host || (of_device->data() == host->data() && of_device->nbytes() == host->nbytes())) return;
  const Device device = of_device->device();
  if (host->data() && !is_device_memory(host->data())) {  // A kernel that computes in scratch memory has resized it.
    Rank& self = rank();
    ComputingFor here(self.first_device + device.index(), self.streams[device.index()], Purpose::TENSOR_WITH_VALUES);
    auto moved = host_or_device.allocate(host->nbytes());
    std::memcpy(moved.get(), host->data(), host->nbytes());
    host->set_data_ptr_noswap(std::move(moved));
  }
  auto keeps_host = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(host);
  of_device->set_data_ptr_noswap(hold(std::move(keeps_host), device.index()));
  of_device->set_nbytes(host->nbytes());
}

void record_use(const void* address, DeviceIndex device, int64_t stream) {
  if (auto* owner = owner_of(address)) owner->record_use(const_cast<void*>(address), stream);
  stream_call(RECORD_STREAM, device, stream, static_cast<int64_t>(reinterpret_cast<intptr_t>(address)));
}

void install_host_allocator() {
  if (!host_allocator) host_allocator = c10::GetDefaultCPUAllocator();
  c10::SetCPUAllocator(&host_or_device, 255);
}
void restore_host_allocator() { c10::SetCPUAllocator(host_allocator, 255); }

namespace {
// Copies to memory of another size what has values, if that can have some too.
void keep_values(void* to, const void* from, size_t size, size_t kept) {
  auto *into = owner_of(to), *out_of = owner_of(from);
  if (!into || !out_of || !kept) return;
  const auto start = reinterpret_cast<uint64_t>(to), before = reinterpret_cast<uint64_t>(from);
  const auto cause = out_of->unknown.find(before, before + kept);
  if (size > value_limits.integer_bytes || (cause && size > value_limits.any_bytes)) return;
  if (cause) return into->unknown.add(start, start + size, *cause);
  into->pages.open(start, start + size);
  std::memcpy(to, from, kept);
  into->unknown.remove(start, start + kept);
}
}  // namespace
void resize_storage(Tensor tensor, int64_t size) {
  const auto& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  auto* host = host_of(storage.unsafeGetStorageImpl());
  TORCH_CHECK(host, "simrank: memory that no simulated device allocated cannot be resized");
  Rank& self = rank();
  const DeviceIndex device = storage.device().index();
  ComputingFor here(self.first_device + device, self.streams[device], Purpose::TENSOR);
  auto data = size ? host_or_device.allocate(size) : c10::DataPtr(nullptr, c10::kCPU);
  const size_t kept = std::min<size_t>(size, host->nbytes());
  if (lacks_values) {
    keep_values(data.get(), host->data(), size, kept);
  } else {
    if (fills_fresh && size) std::memset(data.get(), 0xFF, size);
    if (kept) std::memcpy(data.get(), host->data(), kept);
  }
  host->set_data_ptr_noswap(std::move(data));
  host->set_nbytes(size);
  follow_host(storage);
}
}  // namespace simrank

using simrank::memory_of;
extern "C" {
// What this thread allocates on a device comes from a pool from now on.
void simrank_pool_begin(int global_device, int64_t name, int is_split, int is_symmetric) {
  auto pools = memory_of(global_device).pools_named(name);
  pools->is_split = is_split != 0;
  pools->is_symmetric = is_symmetric != 0;
  auto& kept = simrank::kept_pools[name];
  if (std::find(kept.begin(), kept.end(), pools) == kept.end()) kept.push_back(pools);
  simrank::pools_in_use.push_back({global_device, std::move(pools)});
}
void simrank_pool_end(int global_device, int64_t name) {
  auto& in_use = simrank::pools_in_use;
  for (size_t i = in_use.size(); i-- > 0;)
    if (in_use[i].device == global_device && in_use[i].pools->name == name) {
      in_use.erase(in_use.begin() + static_cast<int64_t>(i));
      return;
    }
}
void simrank_pool_drop(int64_t name) { simrank::kept_pools.erase(name); }
}
namespace {
thread_local std::vector<int64_t> exported;
void put(const c10::CachingAllocator::StatArray& of) {
  for (auto& stat : of)
    exported.insert(exported.end(), {stat.current, stat.peak, stat.allocated, stat.freed});
}
}  // namespace
extern "C" {
// The order is MEMORY_STATS of memory.py: nine arrays of three pools of four numbers, then eight.
const int64_t* simrank_memory_stats(int device) {
  exported.clear();
  auto& stats = memory_of(device).stats;
  for (auto* kind : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
                     &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                     &stats.inactive_split_bytes, &stats.requested_bytes})
    put(*kind);
  exported.insert(exported.end(), {stats.num_alloc_retries, stats.num_ooms, stats.num_device_alloc,
                                   stats.num_device_free,
                                   static_cast<int64_t>(memory_of(device).reserved()),
                                   static_cast<int64_t>(memory_of(device).limit()),
                                   memory_of(device).most_allocated,
                                   memory_of(device).most_reserved});
  return exported.data();
}
const int64_t* simrank_memory_snapshot(int device, int64_t* num_words) {
  exported = memory_of(device).snapshot();
  *num_words = exported.size();
  return exported.data();
}
void simrank_trace_memory(int on) {
  simrank::is_tracing_memory = on != 0;
  for (auto& memory : simrank::devices) if (memory && on) memory->trace.clear();
}
const int64_t* simrank_memory_trace(int device, int64_t* num_words) {
  *num_words = memory_of(device).trace.size();
  return memory_of(device).trace.data();
}
void simrank_set_memory_limit(int device, uint64_t limit) { memory_of(device).set_limit(limit); }
// Which allocated block an address lies in: 1 and its bounds, or 0.
int simrank_find_block(uint64_t address, uint64_t* start, uint64_t* size) {
  int device = simrank::global_device_of(reinterpret_cast<void*>(address));
  return device >= 0 && memory_of(device).find(address, start, size);
}
// Which block of pinned memory an address lies in: 1 and its bounds, or 0.
int simrank_find_pinned(uint64_t address, uint64_t* start, uint64_t* size) {
  return simrank::find_pinned(address, start, size);
}
int simrank_device_of(uint64_t address) {
  return simrank::global_device_of(reinterpret_cast<void*>(address));
}
// Those of the last devices; what is left of devices before them has been looked at before.
int64_t simrank_num_live_blocks() {
  int64_t live = 0;
  for (auto& memory : simrank::devices) if (memory) live += memory->num_live();
  return live;
}
// Closes the devices, and returns where others may lie: tensors that still live keep their place.
uint64_t simrank_free_base(uint64_t base, uint64_t size) { return simrank::free_base(base, size); }
}
