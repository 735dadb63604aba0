#include "sim/stream.h"

#include "sim/machine.h"

namespace staging::sim {

void Stream::unreferenced(Stream* stream) {
  Machine::get().streams.release(stream);
}

}  // namespace staging::sim
