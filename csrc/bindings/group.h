// What a buffer's binding needs of its group's.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "transfer/copy_order.h"

namespace staging::bindings {

// The order that the copies of a member of `group`, a _C.Group or None, take part in. Null
// where there is no group, or the group has no device.
std::shared_ptr<CopyOrder> order_of_group(pybind11::handle group);

}  // namespace staging::bindings
