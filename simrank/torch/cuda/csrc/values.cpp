#include "values.h"
#include "caching.h"
#include <algorithm>
#include <csignal>
#include <cstring>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>
#include <unistd.h>

namespace simrank {

bool lacks_values = false;
ValueLimits value_limits;

void UnknownRanges::cut(uint64_t at) {
  auto after = ranges_.upper_bound(at);
  if (after == ranges_.begin()) return;
  auto& [start, range] = *std::prev(after);
  if (start == at || range.end <= at) return;
  ranges_.emplace_hint(after, at, range);
  range.end = at;
}
void UnknownRanges::remove(uint64_t start, uint64_t end) {
  if (ranges_.empty() || start >= end) return;
  cut(start);
  cut(end);
  ranges_.erase(ranges_.lower_bound(start), ranges_.lower_bound(end));
}
void UnknownRanges::add(uint64_t start, uint64_t end, const Cause& cause) {
  if (start >= end) return;
  remove(start, end);
  auto next = ranges_.lower_bound(end);
  if (next != ranges_.end() && next->first == end && next->second.cause == cause) {
    end = next->second.end;
    next = ranges_.erase(next);
  }
  if (next != ranges_.begin()) {
    auto& [first, before] = *std::prev(next);
    if (before.end == start && before.cause == cause) { before.end = end; return; }
  }
  ranges_.emplace_hint(next, start, Range{end, cause});
}
std::optional<Cause> UnknownRanges::find(uint64_t start, uint64_t end) const {
  auto after = ranges_.upper_bound(start);
  if (after != ranges_.begin() && std::prev(after)->second.end > start) return std::prev(after)->second.cause;
  if (after != ranges_.end() && after->first < end) return after->second.cause;
  return std::nullopt;
}

// Calls `change` with each longest range of pages, from `first` to `last`, that it makes a difference to.
template <typename Change>
void Pages::change(uint64_t first, uint64_t last, bool opens, Change change) {
  uint64_t start = 0, end = 0;  // What is to be changed so far.
  const auto flush = [&] { if (start < end) change(start * kPage, (end - start) * kPage); };
  auto chunk = opens ? chunks_.end() : chunks_.lower_bound(first / kInChunk);
  for (uint64_t page = first; page < last;) {
    const uint64_t number = page / kInChunk;
    if (opens) {
      chunk = chunks_.try_emplace(number).first;
    } else {
      while (chunk != chunks_.end() && chunk->first < number) ++chunk;
      if (chunk == chunks_.end()) break;
      if (chunk->first > number) { page = chunk->first * kInChunk; continue; }
    }
    const uint64_t stop = std::min(last, (number + 1) * kInChunk);
    for (; page < stop; page++) {
      if (chunk->second[page % kInChunk] == opens) continue;
      chunk->second[page % kInChunk] = opens;
      if (page != end) { flush(); start = page; }
      end = page + 1;
    }
  }
  flush();
}
void Pages::open(uint64_t start, uint64_t end) {
  change(start / kPage, (end + kPage - 1) / kPage, true, [](uint64_t address, size_t size) {
    TORCH_CHECK(mprotect(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE) == 0,
                "simrank: no host memory for a device: ", std::strerror(errno));
  });
}
void Pages::close(uint64_t start, uint64_t end) {
  change((start + kPage - 1) / kPage, end / kPage, false, [](uint64_t address, size_t size) {
    madvise(reinterpret_cast<void*>(address), size, MADV_DONTNEED);
    mprotect(reinterpret_cast<void*>(address), size, PROT_NONE);
  });
}

// ---- tensors
namespace {
constexpr int64_t kMostRuns = 256;  // Assumed: beyond, what lies between the elements counts too.

// Calls `each` with the first byte and the end of every run of a tensor's elements that lie without
// a gap. False: there are too many, and it was called once with all that they span.
template <typename Each>
bool for_each_run(const Tensor& tensor, Each each) {
  if (!tensor.numel()) return true;
  const auto* impl = tensor.unsafeGetTensorImpl();
  const uint64_t item = tensor.element_size();
  const uint64_t start = reinterpret_cast<uint64_t>(impl->unsafe_storage().unsafeGetStorageImpl()->data()) +
                         impl->storage_offset() * item;
  if (impl->is_non_overlapping_and_dense_or_false()) {
    each(start, start + tensor.numel() * item);
    return true;
  }
  c10::SmallVector<std::pair<int64_t, int64_t>, 6> dims;  // Stride, size.
  for (int64_t d = 0; d < tensor.dim(); d++)
    if (tensor.size(d) > 1 && tensor.stride(d) != 0) dims.emplace_back(tensor.stride(d), tensor.size(d));
  std::sort(dims.begin(), dims.end());
  int64_t dense = 1, num_runs = 1, span = 1;
  size_t inner = 0;
  for (; inner < dims.size() && dims[inner].first == dense; inner++) dense *= dims[inner].second;
  for (auto& [stride, size] : dims) span += stride * (size - 1);
  for (size_t d = inner; d < dims.size(); d++) num_runs *= dims[d].second;
  if (num_runs > kMostRuns) {
    each(start, start + span * item);
    return false;
  }
  for (int64_t run = 0; run < num_runs; run++) {
    int64_t offset = 0, rest = run;
    for (size_t d = inner; d < dims.size(); rest /= dims[d].second, d++) offset += rest % dims[d].second * dims[d].first;
    each(start + offset * item, start + (offset + dense) * item);
  }
  return true;
}
DeviceMemory* memory_at(const void* address) {
  const int device = address ? global_device_of(address) : -1;
  if (device >= 0) return &memory_of(device);
  return address && is_ranks_host_memory(address) ? &ranks_host_memory() : nullptr;
}
DeviceMemory* memory_behind(const Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  return memory_at(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->data());
}
}  // namespace

std::optional<Cause> unknown_cause(const Tensor& tensor) {
  auto* memory = memory_behind(tensor);
  if (!memory) return std::nullopt;
  std::optional<Cause> found;
  for_each_run(tensor, [&](uint64_t start, uint64_t end) { if (!found) found = memory->unknown.find(start, end); });
  return found;
}
// What lay in memory that stays open is a NaN in every floating type from now on.
void lose_values(const Tensor& tensor, const Cause& cause) {
  auto* memory = memory_behind(tensor);
  if (!memory) return;
  const size_t size = tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
  const bool stays_open = tensor.is_cuda() && size <= value_limits.any_bytes;
  for_each_run(tensor, [&](uint64_t start, uint64_t end) {  // Of too many runs: also what lies between.
    memory->unknown.add(start, end, cause);
    if (stays_open) std::memset(reinterpret_cast<void*>(start), 0xFF, end - start);
    if (tensor.is_cpu()) memory->pages.close(start, end - start == size ? Pages::after(end) : end);
  });
}
void regain_values(const Tensor& tensor) {
  auto* memory = memory_behind(tensor);
  if (!memory || memory->unknown.empty()) return;
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  if (for_each_run(tensor, [&](uint64_t start, uint64_t end) { runs.emplace_back(start, end); }))
    for (auto& [start, end] : runs) memory->unknown.remove(start, end);
}
bool can_lose_values(const Tensor& tensor) { return !tensor.numel() || memory_behind(tensor); }
void write_host_values(const Tensor& tensor) {
  if (!memory_behind(tensor) || !unknown_cause(tensor)) return;
  open_pages(tensor);
  regain_values(tensor);
}
void assume(const Tensor& tensor, const Tensor& value) {
  open_pages(tensor);
  ComputingFor for_real(-1, 0, Purpose::SCRATCH);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  (tensor.is_cpu() ? tensor : host_alias(tensor)).copy_(value.is_cpu() ? value : host_alias(value));
  regain_values(tensor);
}
bool may_have_values(const Tensor& tensor) {
  return value_limits.fit(tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes(), tensor.scalar_type());
}
void open_pages(const Tensor& tensor) {
  auto* memory = memory_behind(tensor);
  if (!memory) return;
  const auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const auto start = reinterpret_cast<uint64_t>(storage->data());
  memory->pages.open(start, start + storage->nbytes());
}

namespace {
// Calls `each` with every element's number, in the order of its indices, and its first byte.
template <typename Each> void for_each_element(const Tensor& tensor, Each each) {
  const auto start = reinterpret_cast<uint64_t>(tensor.unsafeGetTensorImpl()->unsafe_storage().data());
  const uint64_t item = tensor.element_size();
  for (int64_t number = 0; number < tensor.numel(); number++) {
    int64_t offset = tensor.storage_offset(), rest = number;
    for (int64_t d = tensor.dim() - 1; d >= 0; rest /= tensor.size(d), d--) offset += rest % tensor.size(d) * tensor.stride(d);
    each(number, start + offset * item);
  }
}
}  // namespace

Tensor unknown_elements(const Tensor& tensor) {
  Tensor which = at::zeros(tensor.sizes(), at::kBool);
  auto* memory = memory_behind(tensor);
  if (!memory || !unknown_cause(tensor)) return which;
  bool* flags = which.mutable_data_ptr<bool>();
  const uint64_t item = tensor.element_size();
  for_each_element(tensor, [&](int64_t number, uint64_t at) { flags[number] = memory->unknown.find(at, at + item).has_value(); });
  return which;
}
void lose_elements(const Tensor& tensor, const Tensor& which, const Cause& cause) {
  auto* memory = memory_behind(tensor);
  const Tensor in_order = which.expand(tensor.sizes()).contiguous();
  const bool* flags = in_order.const_data_ptr<bool>();
  const uint64_t item = tensor.element_size();
  for_each_element(tensor, [&](int64_t number, uint64_t at) { if (flags[number]) memory->unknown.add(at, at + item, cause); });
}

namespace {
thread_local std::optional<double> value_to_read;
}  // namespace
StatingValue::StatingValue(double value) { value_to_read = value; }
StatingValue::~StatingValue() { value_to_read.reset(); }

double ask_for_value(const char* op, const Tensor& tensor) {
  if (value_to_read) return *value_to_read;
  const Cause cause = unknown_cause(tensor).value_or(Cause{});
  const std::string what = c10::str("a ", tensor.dtype().name(), " tensor of shape ", tensor.sizes());
  double value = 0;
  ComputingFor nobody;
  TORCH_CHECK(callbacks.on_unknown, "simrank: ", op, " reads values that this run does not have");
  if (callbacks.on_unknown(op, what.c_str(), cause.op, cause.site, &value) < 0) raise_from_python(CALLBACK_RAISED);
  return value;
}
at::Scalar ask_for_number(const char* op, const Tensor& tensor) {
  const double value = ask_for_value(op, tensor);
  if (tensor.scalar_type() == at::kBool) return value != 0;
  return c10::isIntegralType(tensor.scalar_type(), false) ? at::Scalar(static_cast<int64_t>(value)) : at::Scalar(value);
}
int64_t site_of_caller() { return callbacks.on_site ? callbacks.on_site() : -1; }

// ---- native code that reads what is not there
namespace {
struct sigaction handler_before;
void say(const char* text) { [[maybe_unused]] auto written = write(STDERR_FILENO, text, std::strlen(text)); }

void on_trap(int signal, siginfo_t* info, void* context) {
  auto* memory = lacks_values ? memory_at(info->si_addr) : nullptr;
  if (memory) {
    const auto address = reinterpret_cast<uint64_t>(info->si_addr);
    const auto cause = memory->unknown.find(address, address + 1);
    say("simrank: native code reads memory of a tensor that has no values in this run (data=False)");
    if (cause) { say("; they were lost in "); say(cause->op); }
    say("\n");
  }
  sigaction(SIGSEGV, &handler_before, nullptr);  // Returning reads again: what was there before reports it.
}
}  // namespace

void set_values(bool are_there, size_t any_bytes, size_t integer_bytes) {
  const bool was_trapping = lacks_values;
  lacks_values = !are_there;
  if (lacks_values) register_host_kernels();
  else forget_host_kernels();
  value_limits = are_there ? ValueLimits{} : ValueLimits{any_bytes, integer_bytes};
  if (lacks_values == was_trapping) return;
  struct sigaction handler {};
  handler.sa_sigaction = &on_trap;
  handler.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&handler.sa_mask);
  sigaction(SIGSEGV, lacks_values ? &handler : &handler_before, lacks_values ? &handler_before : nullptr);
}
}  // namespace simrank

extern "C" {
void simrank_values(int are_there, uint64_t any_bytes, uint64_t integer_bytes) {
  simrank::set_values(are_there != 0, any_bytes, integer_bytes);
}
// Whether all these bytes of a device are known.
int simrank_are_known(uint64_t address, uint64_t size) {
  auto* memory = simrank::memory_at(reinterpret_cast<void*>(address));
  return !memory || !memory->unknown.find(address, address + size);
}
// For each of a device's elements in a row whether it is unknown.
void simrank_unknown_flags(uint64_t address, uint64_t item, uint64_t count, uint8_t* flags) {
  auto* memory = simrank::memory_at(reinterpret_cast<void*>(address));
  if (!memory) return;
  for (uint64_t i = 0; i < count; i++, address += item) flags[i] = memory->unknown.find(address, address + item).has_value();
}
// The operator's name must stay alive.
void simrank_lose(uint64_t address, uint64_t size, const char* op, int64_t site) {
  auto* memory = simrank::memory_at(reinterpret_cast<void*>(address));
  if (!memory) return;
  memory->unknown.add(address, address + size, {op, site});
  uint64_t start, whole;
  if (memory->device < 0 && memory->find(address, &start, &whole)) {  // The host's.
    const uint64_t end = simrank::Pages::after(address + size);
    memory->pages.close(address, end == start + whole ? end : address + size);
  }
}
// All these bytes are about to be written.
void simrank_regain(uint64_t address, uint64_t size) {
  auto* memory = simrank::memory_at(reinterpret_cast<void*>(address));
  if (!memory) return;
  memory->pages.open(address, address + size);
  memory->unknown.remove(address, address + size);
}
}
