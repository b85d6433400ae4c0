// Everything that a rewritten kernel file needs.
#pragma once
#include "launch.h"
#include "tensor.h"
