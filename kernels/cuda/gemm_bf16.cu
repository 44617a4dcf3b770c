// Matrix products of bf16. A file of its own, since it takes seconds to compile.
#include "tensor.h"

// Both operands lie at multiples of 16 bytes, and so do their rows.
KERNEL(256) gemm_bf16(Product p, Groups of) { tensor<bf16>(p, of); }
EXPORT(gemm_bf16)
