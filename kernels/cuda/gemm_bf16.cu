// GEMM of bf16. A file of its own, since it takes seconds to compile.
// defines: tensor_core_gemm
#include "tensor.h"

// Operands and their rows are aligned to 16 bytes.
extern "C" __global__ void __launch_bounds__(256) gemm_bf16(Product p, Groups of) { tensor_core_gemm<bf16>(p, of); }
EXPORT(gemm_bf16)
