#include "sim/work.h"

#include "sim/memory.h"

namespace staging::sim {

bool Work::uses(std::uintptr_t begin, std::uintptr_t end) const {
  bool found = false;
  visit_ranges([&](const Range& range) { found |= range.overlaps(begin, end); });
  return found;
}

}  // namespace staging::sim
