// What the sources of the simulated CUDA devices share; start here.
//
// A tensor is CUDA to all of torch's C++ (device, dispatch key, guard, generator), while its bytes
// lie in the host's memory. A kernel is computed by CPU torch on aliases of its arguments.
// The threads that carry ranks take turns; only what a program's own threads (a data loader's) may
// touch meanwhile takes locks.
#pragma once
#include <torch/headeronly/version.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <memory>
#include <vector>

namespace simrank {
// Ignores warnings of torch within a block.
struct Unwarned {
  struct Handler final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } handler;
  c10::WarningUtils::WarningHandlerGuard guard{&handler};
};


using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::Stream;
using torch::jit::Stack;

class Graph;

// What one rank sees of its node: a process of the real program.
struct Rank {
  int64_t tag;                 // The caller's number for it, handed to callbacks.
  int first_device;            // Global number of the node's first device.
  int num_devices;             // cuda:0 .. cuda:(n-1)
  uint64_t seed;               // What its devices' own generators start from.
  DeviceIndex current = 0;
  std::vector<int64_t> streams;  // The current stream of each device.
  std::vector<at::Generator> generators;
  int64_t num_streams = 0;
  std::shared_ptr<Graph> capturing;
  bool is_computing = false;     // Inside a kernel: what it calls is not captured again.
  bool is_initialized = false;   // The program has used a device: torch.cuda.is_initialized().
  bool is_stepping = false;      // Inside an optimizer's step.
};
enum Phase : int { FORWARD, BACKWARD, RECOMPUTATION, OPTIMIZER };  // Of a training step; mirrored in operations.py.
Phase phase_of(const Rank& rank) noexcept;

extern bool is_enabled;
Rank* bound_rank() noexcept;   // The rank of this thread, or null where no device is visible.
Rank& rank();                  // The same; raises as a CPU build of torch does where there is none.
DeviceIndex device_or_current(DeviceIndex index);  // Checked against the rank's devices.
void call_python(int64_t reason);              // Raises, or gives this thread a rank.
[[noreturn]] void raise_from_python(int64_t reason);  // Raises what Python keeps for this thread.
[[noreturn]] void raise_invalid_ordinal();
enum RaiseReason : int64_t { NO_DEVICES = 0, CALLBACK_RAISED = 1 };

// ---- the simulator above: all optional, null where nobody listens (mirrored in callbacks.py)
enum StreamCall : int {
  STREAM_CREATE, EVENT_RECORD, STREAM_WAIT_EVENT, STREAM_SYNCHRONIZE, EVENT_SYNCHRONIZE,
  DEVICE_SYNCHRONIZE, STREAM_QUERY, EVENT_QUERY, EVENT_DESTROY, HOST_READ, RECORD_STREAM, SLEEP
};
struct Callbacks {
  void (*on_alloc)(int64_t rank, int device, uint64_t address, uint64_t size, int64_t stream);
  void (*on_free)(int64_t rank, int device, uint64_t address, uint64_t size, int64_t stream);
  int64_t alloc_threshold;
  int (*on_out_of_memory)(int64_t rank, int device, uint64_t requested, char* text, int64_t room);
  int (*on_pending)(uint64_t address, uint64_t size, int is_write, int64_t id);
  int (*on_stream_call)(int what, int64_t rank, int device, int64_t stream, int64_t event);
  int (*elapsed_ms)(int64_t start, int64_t end, double* result);
  int (*on_op)(const int64_t* words, int64_t num_words);
  int (*on_rendezvous)(uint64_t address, const char* group, int* rank, int* world_size,
                       uint64_t* buffers, uint64_t* pads, int* global_ranks, int room, uint64_t* multicast);
  int (*on_signal)(uint64_t address, const char* group, int what, int peer, int channel, int64_t timeout_ms);
  void (*on_scope)(int64_t rank, const char* name, int64_t number);  // Null: that one has ended.
  int64_t (*on_site)();  // A number for the program's line that runs.
  // An operator reads a tensor without values, which another lost at a line: what to take instead.
  int (*on_unknown)(const char* op, const char* tensor, const char* lost_by, int64_t site, double* value);
};
extern Callbacks callbacks;
// Calls on_stream_call; true is also what a device without a simulator answers to a query.
bool stream_call(StreamCall what, int device, int64_t stream, int64_t event = 0);

// While one of these is alive, calls to Python leave the exception that this thread is raising
// alone: memory and events die while an exception passes, and a listener would replace it.
struct KeepException {
  KeepException();
  ~KeepException();
  KeepException(const KeepException&) = delete;
  int gil;  // torch frees memory without it, and the exception is this thread's all the same.
  void *type = nullptr, *value = nullptr, *trace = nullptr;
};

// ---- memory
void configure_memory(int num_devices, int num_spans, uint64_t base, uint64_t span,
                      uint64_t device_bytes, bool fill_fresh);
int64_t num_simulations();  // So far; devices are of the last.
int global_device_of(const void* address);  // -1: no device's memory.
// Whose memory CPU torch allocates on this thread: the host's, or a device's. What a kernel needs only
// while it runs, as CUDA's does not, is scratch memory, in no device's statistics; so is what is so
// small that a copy of it costs nothing. In runs without values, kernels that compute have some.
enum class Purpose { HOST, TENSOR, TENSOR_WITH_VALUES, KERNEL, SCRATCH };
bool computes_for_host();  // HOST, as a program's own operations.
struct ComputingFor {
  explicit ComputingFor(int global_device, int64_t stream, Purpose purpose = Purpose::KERNEL);
  ComputingFor() : ComputingFor(-1, 0, Purpose::HOST) {}  // For nobody: while a listener runs.
  ~ComputingFor();
  int previous_device;
  int64_t previous_stream;
  Purpose previous_purpose;
};
c10::intrusive_ptr<c10::StorageImpl> host_storage(size_t size);  // As CPU torch's kernels make it.
c10::DataPtr hold(c10::intrusive_ptr<c10::StorageImpl> host, DeviceIndex device);
c10::DataPtr allocate_on(DeviceIndex device, size_t size);
void resize_storage(Tensor tensor, int64_t size);  // As UntypedStorage.resize_ does it.
c10::Storage device_storage(DeviceIndex device, size_t size);
c10::Storage as_device_storage(c10::intrusive_ptr<c10::StorageImpl> host, DeviceIndex device);
bool is_device_memory(const void* address);
c10::StorageImpl* host_of(const c10::StorageImpl* storage);  // Null: memory from elsewhere.
void follow_host(const c10::Storage& storage);  // After a kernel that may have resized it.
void record_use(const void* address, DeviceIndex device, int64_t stream);
c10::DeviceAllocator* device_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* address);
void install_host_allocator();
void restore_host_allocator();

// ---- operations in flight
extern int64_t num_pending;  // The one thing that is looked at when nothing is in flight.
void wait_for_pending(const Tensor& tensor, bool is_write);
bool is_in_flight(uint64_t start, uint64_t end);          // Whether an operation in flight uses the range.
bool wait_for_range(uint64_t start, uint64_t end, bool is_write);  // False: the listener has raised.

// ---- kernels
struct OpInfo;
Tensor host_alias(const Tensor& tensor);
void register_kernels();
void register_guard();
void install_hooks();
void restore_hooks();
const at::Generator& default_generator(DeviceIndex device);
at::Generator new_generator(DeviceIndex device);
void count_device_properties(int num_processors, int max_threads_per_processor);
bool is_capturing();

}  // namespace simrank
