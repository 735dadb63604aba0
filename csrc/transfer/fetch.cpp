#include "transfer/fetch.h"

namespace staging {

void Fetch::notify(std::shared_ptr<CompletionQueue> queue, std::uint64_t token) const {
  if (done()) {
    queue->expect();
    queue->push(token);
    return;
  }
  context_->notifier().notify(event_, sequence_, std::move(queue), token);
}

}  // namespace staging
