// CUDA graphs: a capture keeps each operation with its arguments' memory; a replay computes them
// again in order. The operations of a capture are also computed while it captures, so that what
// follows has shapes; at its end memory gets back what it held before, as CUDA computes nothing.
#include "fallback.h"
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

namespace simrank {

bool is_capturing() {
  Rank* self = bound_rank();
  return self && self->capturing;
}

void Graph::keep_as_it_was(const Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) return;
  const auto& storage = tensor.storage();
  keep_as_it_was(storage.mutable_data(), storage.nbytes(), storage);
}
void Graph::keep_as_it_was(void* address, size_t size, c10::Storage owner) {
  if (!address || !size || before.count(address)) return;
  auto* bytes = static_cast<const char*>(address);
  before.emplace(address, std::make_pair(std::move(owner), std::vector<char>(bytes, bytes + size)));
}
void Graph::restore() {
  for (auto& [address, kept] : before) std::memcpy(address, kept.second.data(), kept.second.size());
  before.clear();
}

void Graph::replay(size_t first, size_t last) {
  Rank& self = rank();
  for (size_t at = first; at < std::min(last, nodes.size()); at++) {
    auto& node = nodes[at];
    for (size_t i = 0; i < node.inputs.size(); i++) wait_for_pending(node.inputs[i], node.written[i]);
    ComputingFor here(self.first_device + node.device, self.streams[node.device]);
    Stack stack = node.arguments;
    compute(*node.info, node.op, &stack, node.keys);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const size_t base = stack.size() - node.op.schema().returns().size();
    std::vector<size_t> taken(stack.size(), 0);
    for (auto& [index, fresh] : node.fresh) {
      auto& value = stack[base + index];
      fresh.copy_(value.isTensor() ? value.toTensor() : value.toTensorList().get(taken[index]++));
    }
    if (is_recording && !node.info->is_view) {
      c10::SmallVector<bool, 8> written(node.written.begin(), node.written.end());
      record_operation(*node.info, node.device, REPLAYED, node.inputs, written, node.outputs);
    }
  }
}
}  // namespace simrank

using simrank::Graph;
extern "C" {
void* simrank_graph_new() { return new std::shared_ptr<Graph>(std::make_shared<Graph>()); }
void simrank_graph_free(void* graph) { delete static_cast<std::shared_ptr<Graph>*>(graph); }
int simrank_graph_begin(void* graph) {
  auto* self = simrank::bound_rank();
  if (!self || self->capturing) return -1;
  self->capturing = *static_cast<std::shared_ptr<Graph>*>(graph);
  return 0;
}
void simrank_graph_end() {
  if (auto* self = simrank::bound_rank()) self->capturing.reset();
}
void simrank_graph_keep(void* graph, uint64_t address, uint64_t size) {
  (*static_cast<std::shared_ptr<Graph>*>(graph))->keep_as_it_was(reinterpret_cast<void*>(address), size);
}
void simrank_graph_restore(void* graph) { (*static_cast<std::shared_ptr<Graph>*>(graph))->restore(); }
void simrank_graph_reset(void* graph) { (*static_cast<std::shared_ptr<Graph>*>(graph))->nodes.clear(); }
int64_t simrank_graph_size(void* graph) {
  return (*static_cast<std::shared_ptr<Graph>*>(graph))->nodes.size();
}
int simrank_is_capturing() { return simrank::is_capturing(); }
}
