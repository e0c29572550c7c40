#include "caching.h"
#include "simulated.h"
#include <atomic>
#include <cstring>
#include <sys/mman.h>

namespace simrank {

namespace {
constexpr size_t kPage = 4096;
constexpr size_t kGiveBack = 1 << 20;  // Assumed: below it, page faults cost more than they save.
// What freed blocks above it keep of the host's memory, all devices together (assumed). Without it
// an operation on 4 MiB takes five times as long: its temporaries fault in page after page.
constexpr size_t kMaxKept = 256 << 20;
std::atomic<size_t> num_kept{0};

size_t round_block(size_t size) {
  return std::max(kMinBlock, (size + kMinBlock - 1) / kMinBlock * kMinBlock);
}
size_t segment_size(size_t size) {
  if (size <= kSmallSize) return kSmallSegment;
  if (size < kMinLargeAlloc) return kLargeSegment;
  return (size + kRoundLarge - 1) / kRoundLarge * kRoundLarge;
}
// Pages go back to the host; rounded inwards, for the kernel rounds lengths up into neighbours.
void give_pages_back(uintptr_t address, size_t size) {
  uintptr_t low = (address + kPage - 1) & ~(kPage - 1), high = (address + size) & ~(kPage - 1);
  if (low < high) madvise(reinterpret_cast<void*>(low), high - low, MADV_DONTNEED);
}
// A free block keeps its pages while there is room for them.
void keep_or_give_back(Block* block, bool may_keep) {
  if (block->size < kGiveBack) return;
  if (may_keep && num_kept + block->size <= kMaxKept) {
    block->kept = block->size;
    num_kept += block->kept;
  } else {
    give_pages_back(block->address, block->size);
  }
}
void forget_kept(Block* block) { num_kept -= std::exchange(block->kept, 0); }
void tell(void (*listener)(int64_t, int, uint64_t, uint64_t, int64_t), int device,
          const Block& block) {
  if (C10_UNLIKELY(listener != nullptr) &&
      static_cast<int64_t>(block.requested) >= callbacks.alloc_threshold) {
    KeepException keep;
    listener(block.rank, device, block.address, block.requested, block.stream);
  }
}
}  // namespace

DeviceMemory::DeviceMemory(int device, uintptr_t base, size_t span, size_t limit, bool lacks_values)
    : device(device), base_(base), span_(span), limit_(limit), lacks_values_(lacks_values) {
  void* got = mmap(reinterpret_cast<void*>(base), span, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (base ? MAP_FIXED_NOREPLACE : 0), -1, 0);
  TORCH_CHECK(got != MAP_FAILED && (!base || got == reinterpret_cast<void*>(base)), "simrank: the addresses of device ",
              device, " (", span, " bytes at ", base, ") are taken: ", std::strerror(errno));
  base_ = reinterpret_cast<uintptr_t>(got);
  unmapped_[base_] = span;
}

DeviceMemory::~DeviceMemory() {
  release_cached();
  for (auto& [name, pools] : named_) release_whole_segments(*pools);
  retire();
  munmap(reinterpret_cast<void*>(base_), span_);
}

void DeviceMemory::add(Stats& which, bool is_small, int64_t amount) {
  using c10::CachingAllocator::StatType;
  for (auto type : {StatType::AGGREGATE, is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
    auto& stat = which[static_cast<size_t>(type)];
    if (amount >= 0) stat.increase(amount); else stat.decrease(-amount);
  }
}

bool is_tracing_memory = false;

void DeviceMemory::note(TraceAction action, const Block& block) {
  if (C10_UNLIKELY(is_tracing_memory))
    trace.insert(trace.end(), {action, static_cast<int64_t>(block.address),
                               static_cast<int64_t>(block.size), block.stream});
}

void* DeviceMemory::allocate(size_t requested, const Request& request) {
  if (C10_UNLIKELY(!deferred_.empty())) finish_deferred();
  const size_t size = round_block(requested);
  do {
    Lock lock(mutex_);
    if (Block* block = take(size, request.stream, request.pools ? *request.pools : everybodys_)) {
      if (block->pools->is_split) split(block, size);
      block->requested = requested;
      block->allocated = true;
      block->rank = request.rank;
      block->capture = request.capture;
      live_[block->address] = block;
      if (C10_UNLIKELY(lacks_values_)) begin_values(*block, request.has_values);
      return reinterpret_cast<void*>(block->address);
    }
  } while (wait_for_deferred());
  out_of_memory(requested);
  return nullptr;  // Never: it raises.
}

Block* DeviceMemory::take(size_t size, int64_t stream, Pools& pools) {
  if (Block* block = take_cached(size, stream, pools)) return block;
  if (Block* block = new_segment(size, stream, pools)) return block;
  ++stats.num_alloc_retries;
  release_whole_segments();
  return new_segment(size, stream, pools);
}

Block* DeviceMemory::take_cached(size_t size, int64_t stream, Pools& pools) {
  Pools::Free& pool = size <= kSmallSize ? pools.small : pools.large;
  Block key{0, size, stream, false, nullptr};
  auto found = pool.lower_bound(&key);
  if (found == pool.end() || (*found)->stream != stream) return nullptr;
  Block* block = *found;
  pool.erase(found);
  return block;
}

Block* DeviceMemory::new_segment(size_t size, int64_t stream, Pools& pools) {
  const size_t total = segment_size(size);
  if (!fits(total)) return nullptr;
  auto place = unmapped_.begin();
  while (place != unmapped_.end() && place->second < total) ++place;
  if (place == unmapped_.end()) return nullptr;
  auto [address, room] = *place;
  unmapped_.erase(place);
  if (room > total) unmapped_[address + total] = room - total;
  TORCH_CHECK(lacks_values_ || mprotect(reinterpret_cast<void*>(address), total, PROT_READ | PROT_WRITE) == 0,
              "simrank: no host memory for a device: ", std::strerror(errno));
  auto* block = new Block{address, total, stream, size <= kSmallSize, &pools};
  segments_[address] = block;
  ++pools.num_segments;
  reserved_ += total;
  add(stats.reserved_bytes, block->is_small, total);
  add(stats.segment, block->is_small, 1);
  ++stats.num_device_alloc;
  return block;
}

void DeviceMemory::split(Block* block, size_t size) {
  const bool was_split = block->is_split();
  const size_t rest = block->size - size, kept = block->kept;
  forget_kept(block);
  if (block->is_small ? rest < kMinBlock : rest <= kSmallSize) {
    if (!was_split) return;
    add(stats.inactive_split_bytes, block->is_small, -static_cast<int64_t>(block->size));
    add(stats.inactive_split, block->is_small, -1);
    return;
  }
  auto* remaining = new Block{block->address + size, rest, block->stream, block->is_small, block->pools};
  remaining->previous = block;
  remaining->next = block->next;
  if (remaining->next) remaining->next->previous = remaining;
  block->next = remaining;
  block->size = size;
  remaining->kept = kept - std::min(kept, size);
  num_kept += remaining->kept;
  remaining->pools->of(remaining).insert(remaining);
  if (was_split) {
    add(stats.inactive_split_bytes, block->is_small, -static_cast<int64_t>(size));
  } else {
    add(stats.inactive_split_bytes, block->is_small, static_cast<int64_t>(rest));
    add(stats.inactive_split, block->is_small, 1);
  }
}

void DeviceMemory::count(void* address) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto found = live_.find(reinterpret_cast<uintptr_t>(address));
  if (found == live_.end() || found->second->counted) return;
  Block& block = *found->second;
  block.counted = true;
  const int64_t size = block.size;
  add(stats.allocation, block.is_small, 1);
  add(stats.allocated_bytes, block.is_small, size);
  add(stats.requested_bytes, block.is_small, block.requested);
  add(stats.active, block.is_small, 1);
  add(stats.active_bytes, block.is_small, size);
  note(ALLOC, block);
  lock.unlock();
  if (callbacks.on_alloc) tell(callbacks.on_alloc, device, block);
}

void DeviceMemory::free(void* address) {
  std::unique_lock<std::mutex> lock(mutex_);
  auto found = live_.find(reinterpret_cast<uintptr_t>(address));
  TORCH_INTERNAL_ASSERT(found != live_.end(), "simrank: freed twice");
  Block* block = found->second;
  live_.erase(found);
  block->allocated = false;
  if (block->counted) {
    add(stats.allocation, block->is_small, -1);
    add(stats.allocated_bytes, block->is_small, -static_cast<int64_t>(block->size));
    add(stats.requested_bytes, block->is_small, -static_cast<int64_t>(block->requested));
    note(FREE_REQUESTED, *block);
    if (callbacks.on_free) {
      lock.unlock();
      tell(callbacks.on_free, device, *block);
      lock.lock();
    }
  }
  // CUDA gives it out again at once: what its stream does next comes after them.
  block->in_flight = !is_retired_ && is_in_flight(block->address, block->address + block->requested);
  if (!block->other_streams.empty() && callbacks.on_stream_call && bound_rank()) {
    lock.unlock();
    KeepException keep;
    Rank& self = rank();
    for (int64_t stream : block->other_streams) {
      const int64_t event = ++self.num_streams;  // Streams and events share one sequence.
      // A deleter cannot raise: what the listener answers is left for the next allocation.
      callbacks.on_stream_call(EVENT_RECORD, self.tag, device - self.first_device, stream, event);
      block->waits_for.push_back(event);
    }
    block->other_streams.clear();
    deferred_.push_back(block);
    return;
  }
  block->other_streams.clear();
  if (block->in_flight) deferred_.push_back(block); else give_back(block);
}

// For a device without room; false: nothing comes back.
bool DeviceMemory::wait_for_deferred() {
  bool comes_back = false;
  for (Block* block : std::vector<Block*>(deferred_)) {
    if (!block->in_flight || is_capturing()) continue;
    const uintptr_t end = block->address + block->requested;
    if (!wait_for_range(block->address, end, true)) raise_from_python(CALLBACK_RAISED);
    comes_back = comes_back || !is_in_flight(block->address, end);
  }
  if (comes_back) finish_deferred();
  return comes_back;
}

void DeviceMemory::finish_deferred() {
  if (is_capturing()) return;  // Then no event is done, for nothing runs.
  const int first = bound_rank() ? rank().first_device : 0;
  std::vector<Block*> still;
  for (Block* block : std::exchange(deferred_, {})) {
    block->in_flight = block->in_flight && is_in_flight(block->address, block->address + block->requested);
    bool is_done = !block->in_flight;
    for (int64_t event : block->waits_for)
      is_done = is_done && stream_call(EVENT_QUERY, device - first, block->stream, event);
    if (!is_done) { still.push_back(block); continue; }
    for (int64_t event : block->waits_for)
      stream_call(EVENT_DESTROY, device - first, block->stream, event);
    block->waits_for.clear();
    Lock lock(mutex_);
    give_back(block);
  }
  deferred_.insert(deferred_.end(), still.begin(), still.end());
}

void DeviceMemory::give_back(Block* block) {
  if (block->counted) {
    add(stats.active, block->is_small, -1);
    add(stats.active_bytes, block->is_small, -static_cast<int64_t>(block->size));
    note(FREE_COMPLETED, *block);
  }
  block->counted = false;
  block->requested = 0;
  if (C10_UNLIKELY(lacks_values_)) end_values(*block);
  else keep_or_give_back(block, !is_retired_);
  int64_t blocks = 0, bytes = 0;
  for (Block* neighbour : {block->previous, block->next})
    if (size_t gained = merge(block, neighbour)) { blocks -= 1; bytes -= gained; }
  block->pools->of(block).insert(block);
  if (block->is_split()) { blocks += 1; bytes += block->size; }
  if (blocks) add(stats.inactive_split, block->is_small, blocks);
  if (bytes) add(stats.inactive_split_bytes, block->is_small, bytes);
}

// Small memory has values from the start, as whatever lies there; other memory when it gets some.
void DeviceMemory::begin_values(const Block& block, bool are_there) {
  const uint64_t end = block.address + block.requested;
  if (are_there || block.requested <= value_limits.any_bytes) {
    pages.open(block.address, end);
  } else {
    pages.close(block.address, end);
    unknown.add(block.address, end, {"empty", -1});
  }
}
void DeviceMemory::end_values(const Block& block) {
  const uint64_t end = block.address + block.size;
  unknown.remove(block.address, end);
  if (block.size > value_limits.any_bytes) pages.close(block.address, end);
}

size_t DeviceMemory::merge(Block* into, Block* neighbour) {
  if (!neighbour || neighbour->allocated || neighbour->is_awaited()) return 0;
  const size_t gained = neighbour->size;
  neighbour->pools->of(neighbour).erase(neighbour);
  if (neighbour == into->previous) {
    into->previous = neighbour->previous;
    if (into->previous) into->previous->next = into;
    into->address = neighbour->address;
    if (!into->previous) segments_[into->address] = into;
  } else {
    into->next = neighbour->next;
    if (into->next) into->next->previous = into;
  }
  into->size += gained;
  into->kept += neighbour->kept;
  delete neighbour;
  return gained;
}

void DeviceMemory::release_cached() {
  if (!deferred_.empty()) finish_deferred();
  Lock lock(mutex_);
  release_whole_segments();
}

void DeviceMemory::retire() {
  is_retired_ = true;
  Lock lock(mutex_);
  for (auto& [address, first] : segments_)
    for (Block* block = first; block; block = block->next) {
      if (block->kept) give_pages_back(block->address, block->size);
      forget_kept(block);
    }
}

void DeviceMemory::release_whole_segments() {
  release_whole_segments(everybodys_);
  std::erase_if(named_, [this](auto& named) {
    auto& pools = named.second;
    if (pools.use_count() > 1 || pools->is_symmetric) return false;
    release_whole_segments(*pools);
    return pools->num_segments == 0;
  });
}

void DeviceMemory::release_whole_segments(Pools& pools) {
  for (Pools::Free* pool : {&pools.small, &pools.large}) {
    std::vector<Block*> whole;
    for (Block* block : *pool) if (!block->is_split()) whole.push_back(block);
    for (Block* block : whole) { pool->erase(block); drop_segment(block); }
  }
}

void DeviceMemory::drop_segment(Block* block) {
  uintptr_t address = block->address;
  size_t size = block->size;
  forget_kept(block);
  if (lacks_values_) {
    pages.close(address, address + size);
  } else {
    give_pages_back(address, size);
    mprotect(reinterpret_cast<void*>(address), size, PROT_NONE);
  }
  segments_.erase(address);
  reserved_ -= size;
  --block->pools->num_segments;
  add(stats.reserved_bytes, block->is_small, -static_cast<int64_t>(size));
  add(stats.segment, block->is_small, -1);
  ++stats.num_device_free;
  delete block;
  auto after = unmapped_.lower_bound(address);
  if (after != unmapped_.end() && after->first == address + size) {
    size += after->second;
    after = unmapped_.erase(after);
  }
  if (after != unmapped_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == address) { before->second += size; return; }
  }
  unmapped_[address] = size;
}

void DeviceMemory::record_use(void* address, int64_t stream) {
  Lock lock(mutex_);
  auto found = live_.find(reinterpret_cast<uintptr_t>(address));
  if (found != live_.end() && found->second->stream != stream)
    found->second->other_streams.insert(stream);
}

std::shared_ptr<Pools> DeviceMemory::pools_named(int64_t name) {
  Lock lock(mutex_);
  auto& pools = named_[name];
  if (!pools) pools = std::make_shared<Pools>(Pools{name});
  return pools;
}

const Block* DeviceMemory::live(const void* address) {
  Lock lock(mutex_);
  auto found = live_.find(reinterpret_cast<uintptr_t>(address));
  return found == live_.end() ? nullptr : found->second;
}

void DeviceMemory::fill(int64_t capture, int byte) {
  Lock lock(mutex_);
  for (auto& [address, block] : live_)
    if (block->capture == capture && !unknown.find(address, address + block->requested))
      std::memset(reinterpret_cast<void*>(address), byte, block->requested);
}

bool DeviceMemory::find(uintptr_t address, uint64_t* start, uint64_t* size) {
  Lock lock(mutex_);
  auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return false;
  const Block* block = std::prev(after)->second;
  while (block && address >= block->address + block->size) block = block->next;
  if (!block || !block->allocated) return false;
  *start = block->address;
  *size = block->requested;
  return true;
}

void DeviceMemory::out_of_memory(size_t requested) {
  ++stats.num_ooms;
  const Rank* self = bound_rank();
  const int index = self ? device - self->first_device : device;
  std::string text(4096, '\0');
  if (callbacks.on_out_of_memory) {
    ComputingFor nobody;
    int length = callbacks.on_out_of_memory(self ? self->tag : -1, index, requested, text.data(),
                                            static_cast<int64_t>(text.size()));
    if (length < 0) raise_from_python(CALLBACK_RAISED);
    text.resize(length);
  } else {
    text = c10::str("CUDA out of memory. Tried to allocate ", requested, " bytes. GPU ", index,
                    " has a total capacity of ", limit_, " bytes of which ",
                    limit_ - std::min(limit_, reserved_), " bytes are free.");
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, text);
}

// Per segment: address, size, stream, is_small, name of its pool, number of blocks; per block: address, size,
// requested, state (0 inactive, 1 active and awaiting free, 2 allocated).
std::vector<int64_t> DeviceMemory::snapshot() {
  Lock lock(mutex_);
  std::vector<int64_t> words;
  for (auto& [address, first] : segments_) {
    int64_t size = 0, num_blocks = 0;
    for (const Block* block = first; block; block = block->next) { size += block->size; ++num_blocks; }
    words.insert(words.end(), {static_cast<int64_t>(address), size, first->stream,
                               first->is_small, first->pools->name, num_blocks});
    for (const Block* block = first; block; block = block->next)
      words.insert(words.end(), {static_cast<int64_t>(block->address),
                                 static_cast<int64_t>(block->size),
                                 static_cast<int64_t>(block->requested),
                                 block->allocated ? 2 : block->is_awaited()});
  }
  return words;
}
}  // namespace simrank
