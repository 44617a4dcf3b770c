// A cuBLASLt that is none, for tests: products of matrices by columns, as its documentation describes them, done slowly when
// the fake driver's stream gets there. It proposes four algorithms, of which the third refuses to run and the fourth is fast.
#include <cstdint>
#include <cstring>
#include <string>

namespace {
struct Layout { int type; uint64_t rows, columns; int64_t ld; };
struct Product { uint32_t transposed[2] = {0, 0}; };
struct Preference { uint64_t workspace = 0; uint32_t schemes = 99, alignment[4] = {0, 0, 0, 0}; };
struct Algorithm { uint64_t data[8]; };
struct Result { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; };
int (*enqueue)(void *, double, void (*)(void *), void *);
int asked, unsupported;
std::string preferences;
enum { NOT_SUPPORTED = 15, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };

struct Work {
    Product product;
    Layout a, b, c, d;
    const char *at_a, *at_b, *at_c;
    char *at_d;
    float alpha, beta;
};

float from_half(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    float value = exponent ? (1024 + (bits & 1023)) * 0x1p-25f * (1u << exponent) : (bits & 1023) * 0x1p-24f;
    return bits >> 15 ? -value : value;
}
// For values that the type holds exactly.
uint16_t to_half(float value) {
    for (uint32_t bits = 0; bits < 0xffff; bits++) if (from_half(bits) == value) return bits;
    return 0x7c01;
}
float load(const char *at, int type, int64_t i) {
    uint32_t word = 0;
    if (type == 0) memcpy(&word, at + 4 * i, 4);
    else memcpy(&word, at + 2 * i, 2);
    if (type == 2) return from_half(word);
    if (type == 14) word <<= 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}
void store(char *at, int type, int64_t i, float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    uint16_t half = type == 2 ? to_half(value) : word >> 16;
    if (type == 0) memcpy(at + 4 * i, &word, 4);
    else memcpy(at + 2 * i, &half, 2);
}
void multiply(void *argument) {
    auto *work = static_cast<Work *>(argument);
    uint64_t rows = work->d.rows, columns = work->d.columns;
    bool ta = work->product.transposed[0], tb = work->product.transposed[1];
    uint64_t inner = ta ? work->a.rows : work->a.columns;
    for (uint64_t j = 0; j < columns; j++)
        for (uint64_t i = 0; i < rows; i++) {
            double sum = 0;
            for (uint64_t l = 0; l < inner; l++)
                sum += double(load(work->at_a, work->a.type, ta ? l + i * work->a.ld : i + l * work->a.ld))
                    * load(work->at_b, work->b.type, tb ? j + l * work->b.ld : l + j * work->b.ld);
            float value = work->alpha * sum;
            if (work->beta != 0) value += work->beta * load(work->at_c, work->c.type, i + j * work->c.ld);
            store(work->at_d, work->d.type, i + j * work->d.ld, value);
        }
    delete work;
}
bool fits(const Work &work) {
    bool ta = work.product.transposed[0], tb = work.product.transposed[1];
    uint64_t m = ta ? work.a.columns : work.a.rows, k = ta ? work.a.rows : work.a.columns;
    uint64_t k2 = tb ? work.b.columns : work.b.rows, n = tb ? work.b.rows : work.b.columns;
    return m == work.d.rows && n == work.d.columns && k == k2 && work.a.type == work.b.type
        && work.a.ld >= int64_t(work.a.rows) && work.b.ld >= int64_t(work.b.rows) && work.d.ld >= int64_t(work.d.rows);
}
} // namespace

extern "C" {
void fake_attach(int (*function)(void *, double, void (*)(void *), void *)) { enqueue = function; }
int fake_asked() { return asked; }
void fake_unsupported(int value) { unsupported = value; }
// What was preferred when an algorithm was last asked for.
const char *fake_preferences() { return preferences.c_str(); }

size_t cublasLtGetVersion() { return 130100; }
const char *cublasLtGetStatusString(int status) { return status == EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED" : nullptr; }
int cublasLtCreate(void **handle) { *handle = &asked; return enqueue ? 0 : 1; }
int cublasLtDestroy(void *) { return 0; }
int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    *layout = new Layout{type, rows, columns, ld};
    return 0;
}
int cublasLtMatrixLayoutDestroy(Layout *layout) { delete layout; return 0; }
int cublasLtMatmulDescCreate(Product **product, int compute, int scale) {
    *product = new Product;
    return compute == 68 && scale == 0 ? 0 : INVALID_VALUE;
}
int cublasLtMatmulDescDestroy(Product *product) { delete product; return 0; }
int cublasLtMatmulDescSetAttribute(Product *product, int attribute, const void *value, size_t bytes) {
    if ((attribute != 3 && attribute != 4) || bytes != 4) return INVALID_VALUE;
    memcpy(&product->transposed[attribute - 3], value, 4);
    return 0;
}
int cublasLtMatmulPreferenceCreate(Preference **preference) { *preference = new Preference; return 0; }
int cublasLtMatmulPreferenceDestroy(Preference *preference) { delete preference; return 0; }
int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t bytes) {
    if (attribute == 1 && bytes == 8) memcpy(&preference->workspace, value, 8);
    else if (attribute == 3 && bytes == 4) memcpy(&preference->schemes, value, 4);
    else if (attribute >= 5 && attribute <= 8 && bytes == 4) memcpy(&preference->alignment[attribute - 5], value, 4);
    else return INVALID_VALUE;
    return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void *, Product *, Layout *, Layout *, Layout *, Layout *, Preference *preference,
                                   int most, Result *results, int *count) {
    asked++;
    preferences = std::to_string(preference->workspace) + " " + std::to_string(preference->schemes);
    for (uint32_t bytes : preference->alignment) preferences += " " + std::to_string(bytes);
    *count = 0;
    if (unsupported) return unsupported == INVALID_VALUE ? INVALID_VALUE : NOT_SUPPORTED;
    for (uint64_t i = 0; i < 4 && *count < most; i++) {
        size_t workspace = i << 20;
        if (workspace <= preference->workspace) results[(*count)++] = Result{{{i + 100}}, workspace, 0, 1, {}};
    }
    return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm *algorithm, int attribute, void *to, size_t bytes, size_t *written) {
    uint32_t value = attribute == 0 ? algorithm->data[0] : 1000 + attribute;
    memcpy(to, &value, bytes);
    *written = 4;
    return 0;
}
int cublasLtMatmul(void *, Product *product, const float *alpha, const char *a, Layout *la, const char *b, Layout *lb,
                   const float *beta, const char *c, Layout *lc, char *d, Layout *ld, const Algorithm *algorithm,
                   void *workspace, size_t bytes, void *stream) {
    uint64_t which = algorithm->data[0] - 100;
    Work work{*product, *la, *lb, *lc, *ld, a, b, c, d, *alpha, *beta};
    if (which == 2) return NOT_SUPPORTED;
    if (!fits(work) || (which << 20) > bytes || (which && !workspace) || uint64_t(workspace) % 256) return INVALID_VALUE;
    // All of the scratch is the library's to write to.
    if (bytes) memset(workspace, 0xff, bytes);
    const double cost[] = {5, 3, 1, 2};
    return enqueue(stream, cost[which], multiply, new Work(work)) ? EXECUTION_FAILED : 0;
}
}
