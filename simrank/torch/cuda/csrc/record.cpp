// What each operation on a device was: kept as words that Python drains, or handed over at once.
// Where addresses do not matter it is kept as the number of its form, which Python looks at once.
#include "fallback.h"
#include <c10/core/GradMode.h>
#include <string>
#include <torch/csrc/autograd/graph_task.h>
#include <unordered_map>

namespace simrank {

bool is_recording = false;

namespace {
enum Mode : int { NONE, WORDS, FORMS };
int mode = NONE;
std::vector<int64_t> words;
constexpr int kPhaseShift = 30;
std::vector<int64_t> launched;  // form | phase << 30 | device << 32 | stream << 40, in order.
std::vector<std::vector<int64_t>> forms;
std::unordered_map<std::string, int64_t> numbers;

// Turns the words from `start` on into the number of their form.
void keep_form(size_t start, DeviceIndex device, int64_t stream, Phase phase) {
  words[start + 2] = words[start + 3] = words[start + 4] = 0;  // Whose it is, and where.
  const std::string key(reinterpret_cast<const char*>(words.data() + start),
                        (words.size() - start) * sizeof(int64_t));
  auto [found, is_new] = numbers.try_emplace(key, static_cast<int64_t>(forms.size()));
  if (is_new) forms.emplace_back(words.begin() + start, words.end());
  launched.push_back(found->second | static_cast<int64_t>(phase) << kPhaseShift |
                     static_cast<int64_t>(device) << 32 | stream << 40);
  words.resize(start);
}

// Per tensor: address; dtype | dimensions << 8 | written << 16; sizes; strides.
void put(const Tensor& tensor, bool is_written) {
  const auto sizes = tensor.sizes();
  const bool is_dense = tensor.layout() == at::kStrided;
  const auto strides = is_dense ? tensor.strides() : sizes;  // A sparse tensor has none.
  const bool has_data = tensor.has_storage() && !tensor._is_zerotensor();
  words.push_back(has_data && mode != FORMS ? reinterpret_cast<int64_t>(tensor.const_data_ptr()) : 0);
  words.push_back(static_cast<int64_t>(tensor.scalar_type()) |
                  static_cast<int64_t>(sizes.size()) << 8 | static_cast<int64_t>(is_written) << 16);
  words.insert(words.end(), sizes.begin(), sizes.end());
  words.insert(words.end(), strides.begin(), strides.end());
}
}  // namespace

// Checkpoints run forward again with gradients on; backward itself has none, but for gradients of gradients.
Phase phase_of(const Rank& rank) noexcept {
  if (rank.is_stepping) return OPTIMIZER;
  if (torch::autograd::get_current_graph_task_id() == -1) return FORWARD;
  return c10::GradMode::is_enabled() ? RECOMPUTATION : BACKWARD;
}

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
  if (mode == FORMS) return keep_form(start, device, self.streams[device], phase_of(self));
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
void simrank_record(int mode) {
  simrank::mode = mode;
  simrank::is_recording = mode != simrank::NONE;
}
const int64_t* simrank_launched(int64_t* count) {
  *count = simrank::launched.size();
  return simrank::launched.data();
}
int simrank_phase() {
  const simrank::Rank* found = simrank::bound_rank();
  return found ? simrank::phase_of(*found) : simrank::FORWARD;
}
void simrank_step(int is_stepping) {
  if (simrank::Rank* found = simrank::bound_rank()) found->is_stepping = is_stepping != 0;
}
void simrank_forget_launched() { simrank::launched.clear(); }
const int64_t* simrank_form(int64_t number, int64_t* num_words) {
  *num_words = simrank::forms[number].size();
  return simrank::forms[number].data();
}
const int64_t* simrank_recorded(int64_t* num_words) {
  *num_words = words.size();
  return words.data();
}
void simrank_forget_recorded() { words.clear(); }
const char* simrank_op_name(int32_t id) { return simrank::name_of_op(id); }
}
