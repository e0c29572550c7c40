// What torch's own C++ names while somebody profiles: autograd's nodes, parts of DDP's reducer.
#include "simulated.h"
#include <ATen/record_function.h>

namespace simrank {
namespace {
at::CallbackHandle watching = at::INVALID_CALLBACK_HANDLE;
int64_t last_scope = 0;

struct Open : at::ObserverContext {
  Open(int64_t tag, int64_t number) : tag(tag), number(number) {}
  int64_t tag, number;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& scope) {
  const Rank* self = bound_rank();
  // Operators are known from what runs of them, on a device or as a call.
  if (!self || !callbacks.on_scope || scope.operator_name()) return nullptr;
  auto open = std::make_unique<Open>(self->tag, ++last_scope);
  callbacks.on_scope(open->tag, scope.name(), open->number);
  return open;
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  const auto* open = static_cast<const Open*>(context);
  if (open && callbacks.on_scope) callbacks.on_scope(open->tag, nullptr, open->number);
}
}  // namespace
}  // namespace simrank

extern "C" {
void simrank_watch_scopes(int is_on) {
  using namespace simrank;
  if (is_on == (watching != at::INVALID_CALLBACK_HANDLE)) return;
  if (is_on) {
    watching = at::addGlobalCallback(at::RecordFunctionCallback(begin, end).scopes(
        {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  } else {
    at::removeCallback(watching);
    watching = at::INVALID_CALLBACK_HANDLE;
  }
}
}
