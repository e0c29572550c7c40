// One device's memory: torch's caching allocator (CUDACachingAllocator.cpp, 2.13, its native
// backend with default settings) over a fixed span of addresses instead of cudaMalloc.
// The same sizes, pools, splits and merges, so reserved bytes and fragmentation are CUDA's, and
// addresses depend on nothing but the order of calls.
#pragma once
#include "values.h"
#include <c10/core/CachingDeviceAllocator.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace simrank {

constexpr size_t kMinBlock = 512;
constexpr size_t kSmallSize = 1 << 20;
constexpr size_t kSmallSegment = 2 << 20;
constexpr size_t kLargeSegment = 20 << 20;
constexpr size_t kMinLargeAlloc = 10 << 20;
constexpr size_t kRoundLarge = 2 << 20;

struct Pools;

struct Block {
  uintptr_t address;
  size_t size;
  int64_t stream;
  bool is_small;
  Pools* pools;              // Where it goes back to.
  size_t requested = 0;
  size_t kept = 0;           // While it is free: bytes of the host's memory that it may still hold.
  bool allocated = false;
  bool counted = false;      // Belongs to a tensor; a kernel's temporaries are not in statistics.
  int64_t rank = -1;         // Who allocated it.
  int64_t capture = 0;       // Of a graph, in which it was allocated.
  Block* previous = nullptr; // Neighbours in the same segment.
  Block* next = nullptr;
  std::set<int64_t> other_streams;  // record_stream
  std::vector<int64_t> waits_for;   // Events of those streams since it was freed.
  bool in_flight = false;           // Freed, but operations that were issued before still use it.
  bool is_awaited() const { return in_flight || !waits_for.empty(); }
  bool is_split() const { return previous || next; }
};

struct ByStreamAndSize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size != b->size) return a->size < b->size;
    return a->address < b->address;
  }
};

// What is free, to be given out again. Those of graphs and of a program's own (torch.cuda.MemPool) have
// a name, and give to nobody else while somebody holds them: a graph's operations are bound to their
// addresses, whether a tensor is there or not.
struct Pools {
  using Free = std::set<Block*, ByStreamAndSize>;
  int64_t name = 0;  // 0: everybody's.
  bool is_split = true;        // Whether a segment may hold several blocks.
  bool is_symmetric = false;   // Whether its blocks are symmetric memory; they stay until the end.
  size_t num_segments = 0;
  Free small, large;
  Free& of(const Block* block) { return block->is_small ? small : large; }
};

// Whose memory it will be: what a graph captures has pools of its own.
struct Request {
  int64_t stream, rank = -1;
  Pools* pools = nullptr;  // Null: everybody's.
  int64_t capture = 0;
  bool has_values = false;  // Whatever its size: a kernel that computes allocates it.
};

enum TraceAction : int64_t { ALLOC, FREE_REQUESTED, FREE_COMPLETED };
extern bool is_tracing_memory;

class DeviceMemory {
 public:
  DeviceMemory(int device, uintptr_t base, size_t span, size_t limit, bool lacks_values);
  ~DeviceMemory();
  void* allocate(size_t requested, const Request& request);
  std::shared_ptr<Pools> pools_named(int64_t name);
  void count(void* address);  // A tensor owns it from now on.
  void free(void* address);
  void record_use(void* address, int64_t stream);
  void release_cached();
  void retire();  // The simulation has ended; what is alive stays.
  // Bounds of the allocated block that holds the address; false if none does.
  bool find(uintptr_t address, uint64_t* start, uint64_t* size);
  const Block* live(const void* address);  // The allocated block that begins there, or null.
  void fill(int64_t capture, int byte);              // What is left of that.
  size_t num_live() const { return live_.size(); }
  bool overlaps(uintptr_t start, uintptr_t end) const { return base_ < end && start < base_ + span_; }
  uintptr_t end() const { return base_ + span_; }
  size_t reserved() const { return reserved_; }
  size_t limit() const { return limit_; }
  void set_limit(size_t limit) { limit_ = limit; }
  bool fits(size_t size) const { return reserved_ + size <= limit_; }
  std::vector<int64_t> snapshot();
  std::vector<int64_t> trace;  // While memory is traced: action, address, size, stream of each event.
  c10::CachingDeviceAllocator::DeviceStats stats;
  // The most of before the program has last reset its peaks.
  int64_t most_allocated = 0, most_reserved = 0;
  const int device;
  // Where devices lack values:
  UnknownRanges unknown;
  Pages pages;

 private:
  using Stats = c10::CachingAllocator::StatArray;
  Block* take_cached(size_t size, int64_t stream, Pools& pools);
  Block* new_segment(size_t size, int64_t stream, Pools& pools);
  void split(Block* block, size_t size);
  void give_back(Block* block);
  size_t merge(Block* into, Block* neighbour);
  void drop_segment(Block* block);
  void begin_values(const Block& block, bool are_there);
  void end_values(const Block& block);
  void finish_deferred();
  bool wait_for_deferred();
  void release_whole_segments();
  void release_whole_segments(Pools& pools);
  Block* take(size_t size, int64_t stream, Pools& pools);
  void note(TraceAction action, const Block& block);
  void add(Stats& which, bool is_small, int64_t amount);
  void out_of_memory(size_t requested);

  // Ranks take turns, but a program's own threads (a data loader's, say) do not. Listeners are
  // called without it: they may hand the turn to another rank.
  std::mutex mutex_;
  using Lock = std::lock_guard<std::mutex>;
  uintptr_t base_;  // 0: wherever there is room.
  const size_t span_;
  size_t limit_;
  size_t reserved_ = 0;
  const bool lacks_values_;
  bool is_retired_ = false;  // Then freed blocks keep nothing.
  Pools everybodys_;
  std::map<int64_t, std::shared_ptr<Pools>> named_;  // Graphs hold them too.
  std::unordered_map<uintptr_t, Block*> live_;
  std::map<uintptr_t, Block*> segments_;        // By first address; the block there.
  std::map<uintptr_t, size_t> unmapped_;        // Free addresses of the span.
  std::vector<Block*> deferred_;                // Freed, but still used.
};

DeviceMemory& memory_of(int global_device);
void become_symmetric(void* address, size_t size, int device);  // What a pool of such memory gives out.
// What ranks allocate on the host while devices lack values: it can lose its values, too.
DeviceMemory& ranks_host_memory();
bool is_ranks_host_memory(const void* address);
void free_device(void* address);  // Also of a simulation that has ended.
}  // namespace simrank
