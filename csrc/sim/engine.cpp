#include "sim/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "sim/call.h"
#include "sim/progress.h"
#include "sim/thread_state.h"

namespace staging::sim {

void Engine::enqueue(Lock& lock, Stream& stream, Op op) {
  if (lost_ != cudaSuccess) return;
  if (stream.blocking()) {
    // The legacy stream waits for all that was enqueued on blocking streams of its device,
    // and they wait for it (CUDA programming guide, "Default stream").
    const bool legacy = stream.role == Stream::Role::kLegacy;
    for (Stream* other : pending_) {
      if (other == &stream || other->device != stream.device || !other->blocking()) continue;
      if (legacy || other->role == Stream::Role::kLegacy) op.after.push_back(other->tail());
    }
  }
  const bool was_idle = pending_.empty();
  if (stream.queue.empty()) {
    pending_.push_back(&stream);
    ++stream.references;
  }
  stream.queue.push_back(std::move(op));
  ++stream.enqueued;
  schedule_->enqueued(*this, lock);
  if (was_idle && !pending_.empty()) Progress::get().wake();
}

void Engine::wait_in_stream(Lock& lock, Stream& stream, const Mark& mark) {
  if (mark.reached() || mark.stream.get() == &stream) return;
  enqueue(lock, stream, {nullptr, {mark}, cudaSuccess});
}

void Engine::wait(Lock& lock, const Mark& mark) {
  while (!mark.reached() && lost_ == cudaSuccess) {
    if (!schedule_->advance(*this, lock, mark)) changed_.wait(lock);
  }
}

void Engine::drain(Lock& lock, int device) {
  std::vector<Mark> marks;
  for (Stream* stream : pending_) {
    if (device < 0 || stream->device == device) marks.push_back(stream->tail());
  }
  for (const Mark& mark : marks) wait(lock, mark);
}

Stream* Engine::next_towards(const Mark& mark) {
  // Each Mark points to work that was enqueued earlier, so this ends.
  Stream* stream = mark.stream.get();
  for (;;) {
    if (stream->busy || stream->holds > 0) return nullptr;
    Stream* before = nullptr;
    for (const Mark& after : stream->queue.front().after) {
      if (!after.reached()) {
        before = after.stream.get();
        break;
      }
    }
    if (before == nullptr) return stream;
    stream = before;
  }
}

void Engine::collect_ready(std::vector<Stream*>& out) {
  out.clear();
  for (Stream* stream : pending_) {
    if (stream->busy || stream->holds > 0) continue;
    const auto& after = stream->queue.front().after;
    if (std::all_of(after.begin(), after.end(), [](const Mark& m) { return m.reached(); })) {
      out.push_back(stream);
    }
  }
}

void Engine::run_head(Lock& lock, Stream& stream, std::chrono::microseconds delay) {
  stream.busy = true;
  const std::shared_ptr<const Work> work = stream.queue.front().work;
  cudaError_t error = stream.queue.front().fault;
  if (delay.count() > 0) {
    lock.unlock();
    std::this_thread::sleep_for(delay);
    lock.lock();
  }
  if (work == nullptr || error != cudaSuccess || lost_ != cudaSuccess) {
    complete_head(stream, error);
    return;
  }
  switch (work->kind()) {
    case Work::Kind::kHost:
      callbacks_.post([this, &stream, work] {
        Lock callback_lock(mutex_);
        call_back(callback_lock, *work);
        complete_head(stream, cudaSuccess);
        schedule_->completed(*this, callback_lock);
      });
      return;
    case Work::Kind::kDevice:
      if (!schedule_->executes()) break;
      [[fallthrough]];
    case Work::Kind::kMark:
    case Work::Kind::kMemory:
      if (work->brief()) {
        error = work->run();
      } else {
        lock.unlock();
        error = work->run();
        lock.lock();
      }
      break;
  }
  complete_head(stream, error);
}

void Engine::call_back(Lock& lock, const Work& work) {
  const cudaError_t error = lost_;
  lock.unlock();
  thread_state.in_callback = true;
  if (error == cudaSuccess) {
    work.run();
  } else {
    work.dropped(error);
  }
  thread_state.in_callback = false;
  lock.lock();
}

bool Engine::await_callback(Lock& lock, const Ref<Stream>& stream, std::chrono::microseconds time) {
  return changed_.wait_for(lock, time, [&] { return !stream->busy; });
}

void Engine::complete_head(Stream& stream, cudaError_t error) {
  stream.busy = false;
  stream.queue.pop_front();
  ++stream.completed;
  ++completions_;
  if (stream.queue.empty()) unlist(stream);
  // Last: it may be the end of the stream.
  if (error != cudaSuccess) lose(error);
  changed_.notify_all();
}

void Engine::unlist(Stream& stream) {
  pending_.erase(std::find(pending_.begin(), pending_.end(), &stream));
  if (--stream.references == 0) Stream::unreferenced(&stream);
}

void Engine::run_ready(Lock& lock) {
  std::vector<Stream*> ready;
  for (collect_ready(ready); !ready.empty(); collect_ready(ready)) run_head(lock, *ready.front());
}

std::size_t Engine::pending_count() const noexcept {
  std::size_t count = 0;
  for (const Stream* stream : pending_) count += stream->queue.size();
  return count;
}

const Work* Engine::find_user(std::uintptr_t begin, std::uintptr_t end) const {
  for (const Stream* stream : pending_) {
    for (const Op& op : stream->queue) {
      if (op.work != nullptr && op.work->uses(begin, end)) return op.work.get();
    }
  }
  return nullptr;
}

void Engine::hold(Lock& lock, Stream& stream, bool held) {
  stream.holds += held ? 1 : -1;
  if (held) {
    ++stream.references;
    return;
  }
  schedule_->completed(*this, lock);
  changed_.notify_all();
  if (--stream.references == 0) Stream::unreferenced(&stream);
}

void Engine::lose(cudaError_t error) {
  if (lost_ != cudaSuccess) return;
  lost_ = error;
  Attention::set(Attention::kLost, true);
  // Dropping work may drop the last references to streams: keep them while we look.
  std::vector<Ref<Stream>> streams;
  for (Stream* stream : pending_) streams.emplace_back(stream);
  for (const Ref<Stream>& stream : streams) {
    const std::size_t kept = stream->busy ? 1 : 0;
    for (std::size_t i = kept; i < stream->queue.size(); ++i) {
      const std::shared_ptr<const Work>& work = stream->queue[i].work;
      if (work == nullptr || work->kind() != Work::Kind::kHost) continue;
      callbacks_.post([this, work] {
        Lock callback_lock(mutex_);
        call_back(callback_lock, *work);
      });
    }
    while (stream->queue.size() > kept) stream->queue.pop_back();
    stream->completed = stream->enqueued - kept;
    if (kept == 0) unlist(*stream);
  }
  changed_.notify_all();
}

void Engine::recover(Lock& lock) {
  if (lost_ == cudaSuccess) return;
  while (!pending_.empty()) changed_.wait(lock);
  lost_ = cudaSuccess;
  Attention::set(Attention::kLost, false);
}

void Engine::set_schedule(Lock& lock, std::unique_ptr<Schedule> schedule) {
  if (schedule_ != nullptr) {
    drain(lock, -1);
    schedule_->retired();
    retired_.push_back(std::move(schedule_));
  }
  schedule_ = std::move(schedule);
  changed_.notify_all();
}

}  // namespace staging::sim
