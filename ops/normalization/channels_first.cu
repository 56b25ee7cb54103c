// Batch normalization of (N, C, post) in training, with an optional addend; x is read once.
//
// T is the tensor's type, A the accumulating one; V: elements of one access.

#include "normalize_alone.cuh"
#include "normalize_once.cuh"
#include "normalize_shared.cuh"
