// What each operation on a device was: kept as words that Python drains, or handed over at once.
#include "fallback.h"

namespace simrank {

bool is_recording = false;

namespace {
bool keeps_words = false;
std::vector<int64_t> words;

// Per tensor: address; dtype | dimensions << 8 | written << 16; sizes; strides.
void put(const Tensor& tensor, bool is_written) {
  const auto sizes = tensor.sizes();
  const bool is_dense = tensor.layout() == at::kStrided;
  const auto strides = is_dense ? tensor.strides() : sizes;  // A sparse tensor has none.
  const bool has_data = tensor.has_storage() && !tensor._is_zerotensor();
  words.push_back(has_data ? reinterpret_cast<int64_t>(tensor.const_data_ptr()) : 0);
  words.push_back(static_cast<int64_t>(tensor.scalar_type()) |
                  static_cast<int64_t>(sizes.size()) << 8 | static_cast<int64_t>(is_written) << 16);
  words.insert(words.end(), sizes.begin(), sizes.end());
  words.insert(words.end(), strides.begin(), strides.end());
}
}  // namespace

// Words: how many; operator; rank; device; stream; flags; inputs; outputs; then the tensors.
void record_operation(const OpInfo& info, DeviceIndex device, int64_t flags,
                      c10::ArrayRef<Tensor> inputs, c10::ArrayRef<bool> written,
                      c10::ArrayRef<Tensor> outputs) {
  const size_t start = words.size();
  Rank& self = rank();
  const int64_t head[] = {0, info.id, self.tag, device, self.streams[device], flags,
                          static_cast<int64_t>(inputs.size()), static_cast<int64_t>(outputs.size())};
  words.insert(words.end(), std::begin(head), std::end(head));
  for (size_t i = 0; i < inputs.size(); i++) put(inputs[i], written[i]);
  for (auto& output : outputs) put(output, true);
  words[start] = static_cast<int64_t>(words.size() - start);
  if (!callbacks.on_op) return;
  // The listener may hand the turn to another rank, which records too: nothing may be left here.
  std::vector<int64_t> own(words.begin() + start, words.end());
  words.resize(start);
  if (callbacks.on_op(own.data(), static_cast<int64_t>(own.size())) < 0)
    raise_from_python(CALLBACK_RAISED);
}
}  // namespace simrank

using simrank::words;
extern "C" {
void simrank_record(int on) { simrank::is_recording = on != 0; }
const int64_t* simrank_recorded(int64_t* num_words) {
  *num_words = words.size();
  return words.data();
}
void simrank_forget_recorded() { words.clear(); }
const char* simrank_op_name(int32_t id) { return simrank::name_of_op(id); }
}
