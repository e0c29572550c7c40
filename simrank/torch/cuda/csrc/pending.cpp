// Ranges of memory that operations in flight read or write.
// While there are none, a kernel pays one load and one branch.
#include "simulated.h"
#include <map>
#include <unordered_map>

namespace simrank {

int64_t num_pending = 0;

namespace {
struct InFlight {
  uint64_t end;
  int64_t id;
  bool writes;
};
using Ranges = std::multimap<uint64_t, InFlight>;
Ranges in_flight;                                                  // By first address.
std::unordered_map<int64_t, std::vector<Ranges::iterator>> by_id;  // Thousands may be in flight.
uint64_t longest = 0;  // No range is longer: where a search may begin.

std::vector<int64_t> conflicts(uint64_t start, uint64_t end, bool is_write) {
  std::vector<int64_t> ids;
  auto it = in_flight.lower_bound(start > longest ? start - longest : 0);
  for (; it != in_flight.end() && it->first < end; ++it)
    if (it->second.end > start && (is_write || it->second.writes)) ids.push_back(it->second.id);
  return ids;
}
bool is_in_flight(int64_t id, uint64_t start, uint64_t end, bool is_write) {
  const auto found = by_id.find(id);
  if (found == by_id.end()) return false;
  for (const auto& range : found->second)
    if (range->first < end && range->second.end > start && (is_write || range->second.writes)) return true;
  return false;
}
}  // namespace

bool is_in_flight(uint64_t start, uint64_t end) {
  if (C10_LIKELY(num_pending == 0)) return false;
  for (int64_t id : conflicts(start, end, true)) if (id > 0) return true;  // Else it is shared memory.
  return false;
}
bool wait_for_range(uint64_t start, uint64_t end, bool is_write) {
  const auto ids = conflicts(start, end, is_write);
  // The newest first: a stream ends it last, so that one wait does for all that it runs before.
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    // An earlier wait may have ended this one too: other ranks ran meanwhile.
    if (!is_in_flight(*id, start, end, is_write)) continue;
    if (callbacks.on_pending(start, end - start, is_write, *id) < 0) return false;
  }
  return true;
}

void wait_for_pending(const Tensor& tensor, bool is_write) {
  if (C10_LIKELY(num_pending == 0)) return;
  if (!callbacks.on_pending || !tensor.numel() || !tensor.has_storage()) return;
  const auto start = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); d++) last += (tensor.size(d) - 1) * tensor.stride(d);
  if (!wait_for_range(start, start + (last + 1) * tensor.element_size(), is_write))
    raise_from_python(CALLBACK_RAISED);
}
}  // namespace simrank

extern "C" {
void simrank_pending_add(uint64_t address, uint64_t size, int writes, int64_t id) {
  simrank::by_id[id].push_back(
      simrank::in_flight.insert({address, {address + size, id, writes != 0}}));
  simrank::longest = std::max(simrank::longest, size);
  ++simrank::num_pending;
}
// What an operation of torch does before it touches a range; -1: the listener has raised.
int simrank_touch(uint64_t address, uint64_t size, int is_write) {
  if (simrank::num_pending == 0 || !simrank::callbacks.on_pending || !size) return 0;
  return simrank::wait_for_range(address, address + size, is_write != 0) ? 0 : -1;
}
void simrank_pending_clear() {
  simrank::in_flight.clear();
  simrank::by_id.clear();
  simrank::num_pending = 0;
  simrank::longest = 0;
}
void simrank_pending_remove(int64_t id) {
  const auto found = simrank::by_id.find(id);
  if (found == simrank::by_id.end()) return;
  for (const auto& range : found->second) simrank::in_flight.erase(range);
  simrank::by_id.erase(found);
  simrank::num_pending = simrank::in_flight.size();
  if (simrank::in_flight.empty()) simrank::longest = 0;
}
}
