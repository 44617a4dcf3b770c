// Matrix products of f16. A file of its own, since it takes seconds to compile.
#include "tensor.h"

// Both operands lie at multiples of 16 bytes, and so do their rows.
KERNEL(256) gemm_f16(Product p, Groups of) { tensor<f16>(p, of); }
EXPORT(gemm_f16)
