// Which rank a thread carries, and how errors leave for Python.
#include "simulated.h"
#include <c10/core/AutogradState.h>
#include <c10/util/ThreadLocalDebugInfo.h>

extern "C" {  // Of Python, whose headers nothing here needs.
int PyGILState_Ensure();
void PyGILState_Release(int state);
void PyErr_Fetch(void** type, void** value, void** trace);
void PyErr_Restore(void* type, void* value, void* trace);
}

namespace simrank {

Callbacks callbacks{};

KeepException::KeepException() : gil(PyGILState_Ensure()) { PyErr_Fetch(&type, &value, &trace); }
KeepException::~KeepException() {
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
}

namespace {
// torch hands this to every thread that it makes for one of ours (autograd, at::launch, jit.fork).
struct RankInfo final : c10::DebugInfoBase {
  std::shared_ptr<Rank> rank;
};
#if TORCH_VERSION_MINOR < 13  // An enumeration: no name of our own, and its tests' are free.
const c10::DebugInfoKind kRankInfo = c10::DebugInfoKind::TEST_INFO_2;
#else
constexpr std::string_view kRankInfoName = "SIMRANK_RANK";
const c10::DebugInfoKind kRankInfo(&kRankInfoName);
#endif
thread_local Rank* carried = nullptr;
thread_local std::shared_ptr<RankInfo> own_info;
thread_local bool multithreading_before = true;
std::shared_ptr<Rank> of_other_threads;

Rank* inherited() noexcept {
  auto* info = static_cast<RankInfo*>(c10::ThreadLocalDebugInfo::get(kRankInfo));
  Rank* found = info && info->rank ? info->rank.get() : of_other_threads.get();
  // torch has no thread that runs backward for a simulated device: the caller's does.
  if (found) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  return found;
}
}  // namespace

bool is_enabled = false;

Rank* bound_rank() noexcept {
  if (C10_UNLIKELY(!is_enabled)) return nullptr;
  return carried ? carried : inherited();
}

Rank& rank() {
  if (Rank* found = bound_rank()) return *found;
  call_python(NO_DEVICES);  // It may give this thread a rank: torch asks for devices once only.
  if (Rank* found = bound_rank()) return *found;
  raise_from_python(NO_DEVICES);
}

DeviceIndex device_or_current(DeviceIndex index) {
  Rank& self = rank();
  if (index < 0) return self.current;
  if (index >= self.num_devices) raise_invalid_ordinal();
  return index;
}

void raise_invalid_ordinal() {
  constexpr int kCudaErrorInvalidDevice = 101;
  throw c10::AcceleratorError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, kCudaErrorInvalidDevice,
      "CUDA error: invalid device ordinal\n"
      "GPU device may be out of range, do you have enough GPUs?");
}

// An operator with a kernel in Python is the one door through which Python's own exception
// objects, with type and traceback, pass torch's C++ (which converts every other one).
void call_python(int64_t reason) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("simrank_cuda::raise_kept", "");
  Stack stack{reason};
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &stack);
}

void raise_from_python(int64_t reason) {
  call_python(reason);
  TORCH_INTERNAL_ASSERT(false, "simrank_cuda::raise_kept returned");
}

bool stream_call(StreamCall what, int device, int64_t stream, int64_t event) {
  if (!callbacks.on_stream_call) return true;
  Rank* self = bound_rank();
  ComputingFor nobody;
  int answer = callbacks.on_stream_call(what, self ? self->tag : -1, device, stream, event);
  if (answer < 0) raise_from_python(CALLBACK_RAISED);
  return answer != 0;
}

namespace {
void bind(std::shared_ptr<Rank> rank) {
  auto& autograd = c10::AutogradState::get_tls_state();
  if (!carried && rank) multithreading_before = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(rank ? false : multithreading_before);
  carried = rank.get();
  if (!own_info) {
    own_info = std::make_shared<RankInfo>();
    c10::ThreadLocalDebugInfo::_push(kRankInfo, own_info);
  }
  own_info->rank = std::move(rank);
}
}  // namespace
}  // namespace simrank

using simrank::Rank;
extern "C" {
void* simrank_rank_new(int64_t tag, int first_device, int num_devices, uint64_t seed) {
  auto* made = new std::shared_ptr<Rank>(std::make_shared<Rank>());
  Rank& self = **made;
  self.tag = tag;
  self.first_device = first_device;
  self.num_devices = num_devices;
  self.seed = seed;
  self.streams.resize(num_devices);
  self.generators.resize(num_devices);
  return made;
}
void simrank_rank_free(void* handle) { delete static_cast<std::shared_ptr<Rank>*>(handle); }
void simrank_bind(void* handle) {
  simrank::bind(handle ? *static_cast<std::shared_ptr<Rank>*>(handle) : nullptr);
}
void simrank_bind_other_threads(void* handle) {
  simrank::of_other_threads = handle ? *static_cast<std::shared_ptr<Rank>*>(handle) : nullptr;
}
int simrank_num_devices() {
  Rank* self = simrank::bound_rank();
  return self ? self->num_devices : 0;
}
int64_t simrank_rank_tag() {
  Rank* self = simrank::bound_rank();
  return self ? self->tag : -1;
}
int simrank_first_device() {
  Rank* self = simrank::bound_rank();
  return self ? self->first_device : -1;
}
int simrank_current_device() {
  Rank* self = simrank::bound_rank();
  return self ? self->current : -1;
}
int simrank_is_initialized() {
  Rank* self = simrank::bound_rank();
  return self && self->is_initialized;
}
void simrank_set_initialized(int is_initialized) {
  if (Rank* self = simrank::bound_rank()) self->is_initialized = is_initialized != 0;
}
void simrank_callbacks(const simrank::Callbacks* table) { simrank::callbacks = *table; }
}
