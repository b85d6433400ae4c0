// Everything that a rewritten kernel file needs.
#pragma once
#include "describe.h"
#include "tensor.h"
#if defined(LILY_MMA)
#include "ptx.h"
#endif
