// Runs without values: which bytes of memory hold what the program would have there.
//
// Memory above a limit is given out, counted and never touched; its pages stay closed, so that
// native code that reads them traps. Small memory has values, which operations on unknown ones
// take away and which are back once it is written over.
#pragma once
#include "simulated.h"
#include <bitset>
#include <map>
#include <mutex>

namespace simrank {

extern bool lacks_values;  // This simulation's devices have none above the limits.

struct ValueLimits {
  size_t any_bytes = SIZE_MAX, integer_bytes = SIZE_MAX;  // Of a tensor's whole storage.
  bool fit(size_t bytes, at::ScalarType type) const {
    return bytes <= (c10::isIntegralType(type, true) ? integer_bytes : any_bytes);
  }
};
extern ValueLimits value_limits;

// Who took values away: an operator, and the number that Python has for the line that called it.
struct Cause {
  const char* op = "";
  int64_t site = -1;
  bool operator==(const Cause&) const = default;
};

// Causes of booleans that say whether numbers are finite. A run without values breaks none: what
// reads them is answered without a value that the user states.
inline constexpr char kBroken[] = "whether numbers are broken";
inline constexpr char kFinite[] = "whether numbers are finite";
inline bool is_verdict(const char* op) { return op == kBroken || op == kFinite; }

// Ranges of addresses that are unknown; neighbours with one cause are one range.
class UnknownRanges {
 public:
  void add(uint64_t start, uint64_t end, const Cause& cause);
  void remove(uint64_t start, uint64_t end);
  std::optional<Cause> find(uint64_t start, uint64_t end) const;  // Of the first unknown byte.
  bool empty() const { return ranges_.empty(); }

 private:
  struct Range { uint64_t end; Cause cause; };
  void cut(uint64_t at);  // A range that spans the address becomes two.
  std::map<uint64_t, Range> ranges_;  // By first address.
};

// Pages that may be touched. All are closed at first: neither mapped nor counted by the host.
class Pages {
 public:
  void open(uint64_t start, uint64_t end);   // All that the bytes lie in.
  void close(uint64_t start, uint64_t end);  // Those that lie within; what they held is gone.
  static uint64_t after(uint64_t end) { return (end + kPage - 1) / kPage * kPage; }  // Where the next one begins.

 private:
  static constexpr size_t kPage = 4096, kInChunk = 512;
  template <typename Change> void change(uint64_t first, uint64_t last, bool opens, Change change);
  std::map<uint64_t, std::bitset<kInChunk>> chunks_;  // By number: which pages are open.
};

// Of tensors on devices, and of those of the host that ranks have made while devices lack values.
std::optional<Cause> unknown_cause(const Tensor& tensor);
inline bool is_known(const Tensor& tensor) { return !unknown_cause(tensor); }
void lose_values(const Tensor& tensor, const Cause& cause);
void regain_values(const Tensor& tensor);  // All its bytes have been written.
void open_pages(const Tensor& tensor);     // Those of its whole storage.
bool may_have_values(const Tensor& tensor);
bool can_lose_values(const Tensor& tensor);         // Its memory was allocated here.
void write_host_values(const Tensor& tensor);       // Of a tensor of the host, all of which is written next.
void assume(const Tensor& tensor, const Tensor& value);  // Writes it; all is known from now on.
Tensor unknown_elements(const Tensor& tensor);  // Which they are: booleans of the same shape, on the host.
void lose_elements(const Tensor& tensor, const Tensor& which, const Cause& cause);

// CPU torch's kernels of all operators, which then know what the host's tensors lack; host_values.cpp.
void register_host_kernels();
void forget_host_kernels();

// What the program reads there, by Python's answer; raises where it has none.
double ask_for_value(const char* op, const Tensor& tensor);
at::Scalar ask_for_number(const char* op, const Tensor& tensor);  // The same, of the tensor's type.
inline bool is_mask(const Tensor& tensor) { return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte; }
struct StatingValue {  // While one of these is alive, this thread reads its value.
  explicit StatingValue(double value);
  ~StatingValue();
};
int64_t site_of_caller();  // -1: nobody can tell.
}  // namespace simrank
