// CUDA graphs: a capture keeps each operation with its arguments' memory; a replay computes them
// again in order. The operations of a capture are also computed while it captures, so that what
// follows has shapes; at its end memory gets back what it held before, as CUDA computes nothing.
//
// As on CUDA a graph allocates from pools of its own: what a capture frees is given out again within
// it, and operations are bound to addresses there that no tensor may have any more.
#include "fallback.h"
#include "shapes.h"
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <atomic>

namespace simrank {

bool is_capturing() {
  Rank* self = bound_rank();
  return self && self->capturing;
}

// Other memory is kept: a storage that is resized later, as FSDP does it with the parameters that it
// has gathered, lets go of it; the graph does not.
namespace {
using Memory = std::shared_ptr<c10::DataPtr>;
void drop_share(void* context) { delete static_cast<Memory*>(context); }

Memory share_of(c10::StorageImpl* host) {
  if (host->data_ptr().get_deleter() == &drop_share)
    return *static_cast<Memory*>(host->data_ptr().get_context());
  void* address = host->mutable_data();
  auto memory = std::make_shared<c10::DataPtr>(host->set_data_ptr(c10::DataPtr(nullptr, c10::kCPU)));
  host->set_data_ptr_noswap(c10::DataPtr(address, new Memory(memory), &drop_share, c10::kCPU));
  return memory;
}

c10::intrusive_ptr<c10::StorageImpl> same_memory(c10::StorageImpl* host) {
  void* address = host->mutable_data();
  Rank* self = bound_rank();
  const bool is_graphs = self && self->capturing && self->capturing->has(address);
  c10::DataPtr shared = is_graphs ? c10::DataPtr(address, c10::kCPU)
      : c10::DataPtr(address, new Memory(share_of(host)), &drop_share, c10::kCPU);
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), host->nbytes(),
                                               std::move(shared), host->allocator(), host->resizable());
}

// The tensors of one node with memory of their own; a tensor that comes twice stays one.
class Freezing {
 public:
  Tensor tensor(const Tensor& from) {
    if (!from.defined() || from.layout() != at::kStrided || !from.has_storage()) return from;
    auto& made = made_[from.unsafeGetTensorImpl()];
    if (!made.defined()) made = frozen(from);
    return made;
  }
  void value(c10::IValue& from) {
    if (from.isTensor()) from = tensor(from.toTensor());
    else if (from.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : from.toTensorList()) list.push_back(tensor(each));
      from = std::move(list);
    } else if (from.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (std::optional<Tensor> each : from.toOptionalTensorList())
        list.push_back(each ? std::optional<Tensor>(tensor(*each)) : each);
      from = std::move(list);
    }
  }

 private:
  std::unordered_map<c10::TensorImpl*, Tensor> made_;
};
}  // namespace

Tensor frozen(const Tensor& tensor) {
  auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  auto* host = tensor.is_cuda() ? host_of(storage) : storage;
  if (!host || !is_device_memory(host->data())) return tensor;  // Whoever gave it keeps it.
  auto memory = same_memory(host);
  auto& view = *tensor.unsafeGetTensorImpl();
  if (tensor.is_cpu()) return Tensor(same_view(c10::Storage(std::move(memory)), DispatchKey::CPU, view));
  auto storage_there = as_device_storage(std::move(memory), tensor.device().index());
  return Tensor(same_view(std::move(storage_there), DispatchKey::CUDA, view));
}

void Graph::begin(int64_t pool) {
  static std::atomic<int64_t> num_captures{0};
  pool_ = pool;
  capture_ = ++num_captures;
  simulation_ = num_simulations();
}
// CUDA has computed nothing: fresh memory holds no result before the first replay.
void Graph::restore() {
  for (auto& [device, pools] : pools_) memory_of(device).fill(capture_, 0xFF);
  for (auto& [address, kept] : before_) {
    const auto start = reinterpret_cast<uint64_t>(address);
    const int device = global_device_of(address);
    if (kept.unknown) {
      memory_of(device).unknown.add(start, start + kept.owner.nbytes(), *kept.unknown);
    } else {
      std::memcpy(address, kept.bytes.data(), kept.bytes.size());
      if (device >= 0) memory_of(device).unknown.remove(start, start + kept.bytes.size());
    }
  }
  before_.clear();
}
void Graph::reset() {
  nodes.clear();
  pools_.clear();
}

Request Graph::request_to(DeviceMemory& memory, Request request) {
  auto& pools = pools_[memory.device];
  if (!pools) pools = memory.pools_named(pool_);
  request.pools = pools.get();
  request.capture = capture_;
  return request;
}
const Block* Graph::block_of(const void* address) const {
  const int device = global_device_of(address);
  return device < 0 ? nullptr : memory_of(device).live(address);
}
bool Graph::has(const void* address) const {
  const Block* block = block_of(address);
  return block && pool_ && block->pools->name == pool_;
}

void Graph::add(Node node) {
  Freezing freezing;
  for (auto& value : node.arguments) freezing.value(value);
  for (auto& [index, fresh] : node.fresh) fresh = freezing.tensor(fresh);
  for (auto& tensor : node.inputs) tensor = freezing.tensor(tensor);
  for (auto& tensor : node.outputs) tensor = freezing.tensor(tensor);
  nodes.push_back(std::move(node));
}

void Graph::keep_as_it_was(const Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) return;
  const Tensor kept = frozen(tensor);
  const auto& storage = kept.storage();
  keep_as_it_was(storage.mutable_data(), storage.nbytes(), storage);
}
void Graph::keep_as_it_was(void* address, size_t size, c10::Storage owner) {
  if (!address || !size || before_.count(address)) return;
  const Block* block = block_of(address);
  if (block && block->capture == capture_) return;
  const int device = global_device_of(address);
  const auto start = reinterpret_cast<uint64_t>(address);
  const auto unknown = device < 0 ? std::nullopt : memory_of(device).unknown.find(start, start + size);
  auto* bytes = static_cast<const char*>(address);
  before_.emplace(address, unknown ? Before{std::move(owner), {}, unknown}
                                   : Before{std::move(owner), {bytes, bytes + size}, std::nullopt});
}

bool Graph::run(Node& node) {
  if (lacks_values) {
    bool is_known = node.has_values;
    for (size_t i = 0; i < node.inputs.size(); i++) is_known = is_known && simrank::is_known(node.inputs[i]);
    if (!is_known) return false;
  }
  Rank& self = rank();
  Stack stack = node.arguments;
  ComputingFor here(self.first_device + node.device, self.streams[node.device], purpose_of(*node.info, stack));
  compute(*node.info, node.op, &stack, node.keys);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const size_t base = stack.size() - node.op.schema().returns().size();
  std::vector<size_t> taken(stack.size(), 0);
  for (auto& [index, fresh] : node.fresh) {
    auto& value = stack[base + index];
    fresh.copy_(value.isTensor() ? value.toTensor() : value.toTensorList().get(taken[index]++));
  }
  if (lacks_values) for (auto& output : node.outputs) regain_values(output);
  return true;
}

void Graph::replay(size_t first, size_t last) {
  TORCH_CHECK(nodes.empty() || simulation_ == num_simulations(),
              "simrank: this graph was captured on devices of a Context that has ended");
  for (size_t at = first; at < std::min(last, nodes.size()); at++) {
    auto& node = nodes[at];
    for (size_t i = 0; i < node.inputs.size(); i++) wait_for_pending(node.inputs[i], node.written[i]);
    OnIndex on_index(node.device);
    if (!run(node)) {
      if (node.info->draws) draw_nothing(*node.info, node.op, node.arguments, 0);
      for (size_t i = 0; i < node.inputs.size(); i++)
        if (node.written[i]) lose_values(node.inputs[i], {node.info->name.c_str(), -1});
      for (auto& output : node.outputs) lose_values(output, {node.info->name.c_str(), -1});
    }
    if (is_recording && !node.info->is_view) {
      c10::SmallVector<bool, 8> written(node.written.begin(), node.written.end());
      record_operation(*node.info, node.device, REPLAYED | node.flags, node.inputs, written, node.outputs);
    }
  }
}
}  // namespace simrank

using simrank::Graph;
extern "C" {
void* simrank_graph_new() { return new std::shared_ptr<Graph>(std::make_shared<Graph>()); }
void simrank_graph_free(void* graph) { delete static_cast<std::shared_ptr<Graph>*>(graph); }
int simrank_graph_begin(void* graph, int64_t pool) {
  auto* self = simrank::bound_rank();
  if (!self || self->capturing) return -1;
  self->capturing = *static_cast<std::shared_ptr<Graph>*>(graph);
  self->capturing->begin(pool);
  return 0;
}
void simrank_graph_end() {
  if (auto* self = simrank::bound_rank()) self->capturing.reset();
}
// Once what was captured has run as far as the simulation goes.
void simrank_graph_restore(void* graph) { (*static_cast<std::shared_ptr<Graph>*>(graph))->restore(); }
void simrank_graph_reset(void* graph) { (*static_cast<std::shared_ptr<Graph>*>(graph))->reset(); }
int64_t simrank_graph_size(void* graph) {
  return (*static_cast<std::shared_ptr<Graph>*>(graph))->nodes.size();
}
int simrank_is_capturing() { return simrank::is_capturing(); }
}
