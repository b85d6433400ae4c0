// Everything that a rewritten kernel file needs to become NVIDIA's assembly.
#pragma once
#include "entry.h"
#include "instructions.h"
