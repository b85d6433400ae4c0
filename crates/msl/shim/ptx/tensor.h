// Placeholder.
#pragma once
#include "matrix.h"
