// The device guard: current devices, streams and events of the rank that asks.
// Nothing takes time here; the simulator above is told of each call and may give it time.
#include "simulated.h"

namespace simrank {
namespace {

struct EventState {
  int64_t id;
  int device = 0;  // Where it was recorded last.
  int64_t stream = 0;
  bool is_recorded = false;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  DeviceIndex deviceCount() const noexcept override {
    Rank* self = bound_rank();
    return self ? self->num_devices : 0;
  }
  Device getDevice() const override { return {c10::kCUDA, rank().current}; }
  // Does not raise: destructors guard (a future's), on threads without devices too. Whatever uses
  // the device does.
  Device exchangeDevice(Device to) const override {
    Rank* self = bound_rank();
    if (!self) return to;
    Device before(c10::kCUDA, self->current);
    if (to.index() >= 0 && to.index() < self->num_devices) self->current = to.index();
    return before;
  }
  void setDevice(Device to) const override {
    if (to.index() < 0) return;
    rank().current = device_or_current(to.index());
    rank().is_initialized = true;
  }
  void uncheckedSetDevice(Device to) const noexcept override {
    Rank* self = bound_rank();
    if (self && to.index() >= 0) self->current = to.index();
  }
  static Device full(Device device) { return {c10::kCUDA, device_or_current(device.index())}; }

  Stream getStream(Device device) const override {
    device = full(device);
    return Stream(Stream::UNSAFE, device, rank().streams[device.index()]);
  }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, full(device)); }
  Stream getStreamFromGlobalPool(Device device, bool is_high) const override {
    return getNewStream(device, is_high ? -1 : 0);
  }
  Stream getNewStream(Device device, int priority) const override {
    device = full(device);
    const int64_t id = ++rank().num_streams;
    stream_call(STREAM_CREATE, device.index(), id, priority);
    return Stream(Stream::UNSAFE, device, id);
  }
  Stream exchangeStream(Stream to) const override {
    int64_t& current = rank().streams[device_or_current(to.device_index())];
    return Stream(Stream::UNSAFE, to.device(), std::exchange(current, to.id()));
  }
  void* getStreamNativeHandle(const Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }
  bool isStreamCapturing(const Stream&) const override { return is_capturing(); }
  bool queryStream(const Stream& of) const override {
    return stream_call(STREAM_QUERY, of.device_index(), of.id());
  }
  void synchronizeStream(const Stream& of) const override {
    refuse_while_capturing();
    stream_call(STREAM_SYNCHRONIZE, of.device_index(), of.id());
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    refuse_while_capturing();
    stream_call(DEVICE_SYNCHRONIZE, device_or_current(device), 0);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    record_use(data.get(), stream.device_index(), stream.id());
  }

  void record(void** event, const Stream& on, const DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new EventState{++rank().num_streams};
    auto* state = static_cast<EventState*>(*event);
    state->is_recorded = true;
    state->device = on.device_index();
    state->stream = on.id();
    stream_call(EVENT_RECORD, on.device_index(), on.id(), state->id);
  }
  void block(void* event, const Stream& stream) const override {
    if (auto* state = recorded(event))
      stream_call(STREAM_WAIT_EVENT, stream.device_index(), stream.id(), state->id);
  }
  bool queryEvent(void* event) const override {
    auto* state = recorded(event);
    return !state || stream_call(EVENT_QUERY, state->device, state->stream, state->id);
  }
  void synchronizeEvent(void* event) const override {
    refuse_while_capturing();
    if (auto* state = recorded(event))
      stream_call(EVENT_SYNCHRONIZE, state->device, state->stream, state->id);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    auto* state = static_cast<EventState*>(event);
    Rank* self = bound_rank();
    if (state && self && callbacks.on_stream_call) {
      KeepException keep;
      callbacks.on_stream_call(EVENT_DESTROY, self->tag, state->device, state->stream, state->id);
    }
    delete state;
  }
  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    auto *first = recorded(start), *last = recorded(end);
    TORCH_CHECK_VALUE(first && last, "Both events must be recorded before calculating elapsed time.");
    double result = 0;
    if (callbacks.elapsed_ms && callbacks.elapsed_ms(first->id, last->id, &result) < 0)
      raise_from_python(CALLBACK_RAISED);
    return result;
  }
  static EventState* recorded(void* event) {
    auto* state = static_cast<EventState*>(event);
    return state && state->is_recorded ? state : nullptr;
  }
  static void refuse_while_capturing() {
    if (!is_capturing()) return;
    constexpr int kCudaErrorStreamCaptureUnsupported = 900;
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                kCudaErrorStreamCaptureUnsupported,
                                "CUDA error: operation not permitted when stream is capturing");
  }
};
}  // namespace

// Left in place: tensors outlive simulations, and without a rank it shows no devices. A
// FakeTensorMode outside simulations puts torch's own there, so each simulation registers it anew.
void register_guard() {
  static Guard guard;
  c10::impl::registerDeviceGuard(c10::kCUDA, &guard);
}
}  // namespace simrank

extern "C" {
void simrank_set_device(int device) {
  simrank::bound_rank()->current = static_cast<c10::DeviceIndex>(device);
}
int64_t simrank_current_stream(int device) { return simrank::bound_rank()->streams[device]; }
void simrank_set_stream(int device, int64_t stream) {
  simrank::bound_rank()->streams[device] = stream;
}
}
