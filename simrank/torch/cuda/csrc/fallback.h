// The boxed kernel that stands for every CUDA kernel: CPU torch computes it on aliases.
#pragma once
#include "caching.h"
#include "values.h"
#include <ATen/core/boxing/KernelFunction.h>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

namespace simrank {

enum class Argument : int8_t { OTHER, TENSOR, TENSORS, OPTIONAL_TENSORS, DEVICE, GENERATOR };
// How CUDA's kernel checks that its arguments are on one device, which decides the error's text.
enum class DeviceCheck : int8_t { NONE, EXACT, ITERATOR };

// What is computed once per operator.
struct OpInfo {
  int32_t id = 0;
  std::string name;          // Without `aten::`.
  std::string wrapper;       // What CUDA's errors call its kernel.
  std::vector<Argument> arguments;
  std::vector<bool> writes;
  DeviceCheck check = DeviceCheck::NONE;
  bool reads_host = false;   // Its result's shape or value comes to the host.
  bool is_copy = false;
  bool only_moves = false;   // Elements, and computes nothing from them.
  bool is_laid_out_by_meta = false;  // CPU torch's kernel gives other strides than CUDA's.
  bool is_foreach = false;
  bool is_view = false;      // Launches nothing.
  bool makes_nothing = false;  // No result is a new tensor, nor resized.
  Purpose purpose = Purpose::KERNEL;  // SCRATCH: CPU torch's kernel makes temporaries that CUDA's does not.
  bool draws = false;        // Random numbers, by a kernel of ours.
  std::vector<bool> overwrites;  // Arguments that are written, whatever they held.
  bool is_product = false;   // Of matrices: its float32 may be rounded to TensorFloat-32,
  bool is_convolution = false;  // as that of convolutions is.
  int causal_at = -1;        // Its argument is_causal: attention that leaves out half of the scores.
  bool in_float = false;     // CPU torch's half precision kernel rounds more than once.
  uint32_t float_returns = 0;  // With in_float: bits of the results that stay in fp32.
  std::optional<c10::KernelFunction> kernel;  // Ours, on host aliases, where CPU torch has none.
};

const OpInfo& info_of(const c10::OperatorHandle& op);

struct HostKernel {
  const char* name;
  c10::KernelFunction kernel;
};
std::vector<HostKernel> host_kernels();          // kernels.cpp
std::vector<HostKernel> random_kernels();        // random.cpp

void let_flash_take_wide(bool is_on);
inline bool is_half(const Tensor& t) {
  return t.defined() && (t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16);
}

// A tensor of the device, and the same memory as CPU torch's kernels take it.
struct Alias {
  Tensor device;
  Tensor host;
  bool written;
  bool overwritten;  // And not read.
};

DeviceIndex computing_index();  // The device that the kernel of this thread computes for.
struct OnIndex {
  explicit OnIndex(DeviceIndex index);
  ~OnIndex();
  DeviceIndex before;
};
constexpr DispatchKeySet kDense(DispatchKey::CPU);
constexpr DispatchKeySet kSparse = DispatchKeySet(DispatchKey::CPU).add(DispatchKey::SparseCPU);
void compute(const OpInfo& info, const c10::OperatorHandle& op, Stack* stack, DispatchKeySet keys);
Purpose purpose_of(const OpInfo& info, const Stack& stack);  // SCRATCH also where it computes in fp32.

extern bool is_recording;
void record_operation(const OpInfo& info, DeviceIndex device, int64_t flags,
                      c10::ArrayRef<Tensor> inputs, c10::ArrayRef<bool> written,
                      c10::ArrayRef<Tensor> outputs);
// CUDNN: attention for which the program has not disabled cuDNN's kernels. TF32: a product or a
// convolution of float32 that the program lets round to TensorFloat-32.
enum RecordFlags : int64_t {
  HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, REPLAYED = 4, BLOCKING = 8, CAUSAL = 16, CUDNN = 32,
  TF32 = 64
};
const char* name_of_op(int32_t id);

c10::intrusive_ptr<c10::TensorImpl> same_view(c10::Storage storage, DispatchKey key,
                                              const c10::TensorImpl& of);

// ---- graphs: what was captured is computed again at every replay, on the same memory
Tensor frozen(const Tensor& tensor);  // With the memory it has now, whatever becomes of its storage.
class Graph {
 public:
  struct Node {
    const OpInfo* info;
    c10::OperatorHandle op;
    Stack arguments;                                // Host aliases.
    std::vector<std::pair<int, Tensor>> fresh;      // Results (return, host alias) to fill anew.
    std::vector<Tensor> inputs, outputs;            // For the record.
    std::vector<bool> written;
    DeviceIndex device;
    DispatchKeySet keys;
    int64_t flags;
    bool has_values;  // It computed as it was captured.
  };
  std::vector<Node> nodes;
  void begin(int64_t pool);  // Allocates from the pools of this name from now on.
  void restore();            // Once the capture has ended.
  void reset();
  void add(Node node);
  Request request_to(DeviceMemory& memory, Request request);
  bool has(const void* address) const;  // Whether it lies in the graph's pools.
  void keep_as_it_was(const Tensor& tensor);
  void keep_as_it_was(void* address, size_t size, c10::Storage owner);
  void replay(size_t first, size_t last);  // The nodes from one up to another.

 private:
  // What memory held before the capture wrote there, as CUDA only records.
  struct Before {
    c10::Storage owner;
    std::vector<char> bytes;       // None where it had no values:
    std::optional<Cause> unknown;
  };
  const Block* block_of(const void* address) const;
  bool run(Node& node);  // False: it lacks values, and has no results.
  std::unordered_map<void*, Before> before_;  // By address.
  std::map<int, std::shared_ptr<Pools>> pools_;  // By device. What they have is not anybody else's.
  int64_t pool_ = 0, capture_ = 0, simulation_ = 0;
};
}  // namespace simrank
