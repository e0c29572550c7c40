// torch operators of our own: what Python calls and an exception or a tensor must pass through.
#include "fallback.h"
#include "generator.h"
#include "values.h"
#include <torch/library.h>

namespace simrank {

namespace {
at::Generator generator_of(int64_t device) { return default_generator(static_cast<DeviceIndex>(device)); }
void replay(int64_t graph, int64_t first, int64_t last) {
  auto kept = *reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  kept->replay(first, last);
}
void keep_in_graph(int64_t graph, const Tensor& tensor) {
  (*reinterpret_cast<std::shared_ptr<Graph>*>(graph))->keep_as_it_was(tensor);
}
void touch(const Tensor& tensor, bool is_write) { wait_for_pending(tensor, is_write); }
void synchronize(int64_t device) {
  c10::impl::getDeviceGuardImpl(c10::kCUDA)->synchronizeDevice(static_cast<DeviceIndex>(device));
}
void sleep(int64_t cycles) {
  Rank& self = rank();
  stream_call(SLEEP, self.current, self.streams[self.current], cycles);
}
void set_device(int64_t device) {
  rank().current = device_or_current(static_cast<DeviceIndex>(device));
  rank().is_initialized = true;
}
double stated_value(const Tensor& tensor, c10::string_view reader) {
  return ask_for_value(std::string(reader).c_str(), tensor);
}
Tensor on_device(const Tensor& host, int64_t device) {
  auto* storage = host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  auto shared = as_device_storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage),
                                  device_or_current(static_cast<DeviceIndex>(device)));
  auto made = c10::make_intrusive<c10::TensorImpl>(std::move(shared), DispatchKeySet(DispatchKey::CUDA), host.dtype());
  made->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  return Tensor(std::move(made));
}
}  // namespace
}  // namespace simrank

TORCH_LIBRARY(simrank_cuda, m) {
  m.def("raise_kept(int reason) -> ()");  // Python's kernel: see library.py.
  m.def("default_generator(int device) -> Generator?", &simrank::generator_of);
  m.def("replay(int graph, int first, int last) -> ()", &simrank::replay);
  m.def("keep_in_graph(int graph, Tensor tensor) -> ()", &simrank::keep_in_graph);
  m.def("synchronize(int device) -> ()", &simrank::synchronize);
  m.def("sleep(int cycles) -> ()", &simrank::sleep);
  m.def("set_device(int device) -> ()", &simrank::set_device);
  m.def("let_flash_take_wide(bool is_on) -> ()", &simrank::let_flash_take_wide);
  m.def("resize_storage(Tensor(a!) self, int size) -> ()");
  m.def("touch(Tensor self, bool is_write) -> ()");
  m.def("host(Tensor self) -> Tensor");
  m.def("frozen(Tensor self) -> Tensor");
  m.def("on_device(Tensor self, int device) -> Tensor");
  m.def("assume(Tensor(a!) self, Tensor value) -> ()");
  m.def("is_known(Tensor self) -> bool");
  m.def("stated_value(Tensor self, str reader) -> float");
}
TORCH_LIBRARY_IMPL(simrank_cuda, CUDA, m) {
  m.impl("resize_storage", &simrank::resize_storage);
  m.impl("touch", &simrank::touch);
  m.impl("host", &simrank::host_alias);
  m.impl("frozen", &simrank::frozen);
  m.impl("assume", &simrank::assume);
  m.impl("is_known", &simrank::is_known);
  m.impl("stated_value", &simrank::stated_value);
}
TORCH_LIBRARY_IMPL(simrank_cuda, CPU, m) {
  m.impl("on_device", &simrank::on_device);
  m.impl("assume", &simrank::assume);
  m.impl("is_known", &simrank::is_known);
  m.impl("stated_value", &simrank::stated_value);
}

extern "C" {
const char* simrank_built_for() { return SIMRANK_TORCH_RELEASE; }
// Once per process; what it registers shows no device to threads that carry no rank.
int simrank_register(char* error, int64_t room) {
  try {
    c10::SetAllocator(c10::kCUDA, simrank::device_allocator(), 255);
    simrank::register_kernels();
    return 0;
  } catch (const std::exception& problem) {
    snprintf(error, room, "%s", problem.what());
    return -1;
  }
}
int simrank_enable(int num_devices, int num_spans, uint64_t base, uint64_t span, uint64_t device_bytes,
                   int fill_fresh, char* error, int64_t room) {
  try {
    simrank::configure_memory(num_devices, num_spans, base, span, device_bytes, fill_fresh != 0);
    simrank::register_guard();
    simrank::install_host_allocator();
    simrank::install_hooks();
    simrank::is_enabled = true;
    return 0;
  } catch (const std::exception& problem) {
    snprintf(error, room, "%s", problem.what());
    return -1;
  }
}
void simrank_disable() {
  simrank::is_enabled = false;
  simrank::restore_hooks();
  simrank::restore_host_allocator();
}
void simrank_processors(int num_processors, int threads_per_processor) {
  simrank::count_device_properties(num_processors, threads_per_processor);
}
}
