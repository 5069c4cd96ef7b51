// The matrix units of CUDA, for g++.
//
// The first thread of a plane has all of a fragment, and does for all what they do together; so whatever others read of
// it without a barrier is not yet there. What fragments want of addresses is held to, and a factor with more bits than
// they take is no number.
#pragma once

#include "crt/mma.h"
