// The C interface that Python loads. Functions give 0, or 1 when there is no memory.
#include "model.h"

using namespace midstream;

namespace {

template <class Work>
int guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace

extern "C" {

// Null when there is no memory. `narrow`: bfloat16 instead of float32.
void* midstream_create(const Sizes* sizes, const float* inverse_frequencies, int narrow, int threads) {
  AnyModel* model = nullptr;
  guarded([&] {
    if (narrow)
      model = new Model<bf16>(*sizes, inverse_frequencies, threads);
    else
      model = new Model<float>(*sizes, inverse_frequencies, threads);
  });
  return model;
}

void midstream_destroy(void* model) { delete static_cast<AnyModel*>(model); }

int midstream_set_matrix(void* model, int layer, int name, const void* data, int narrow, int format) {
  return guarded([&] {
    static_cast<AnyModel*>(model)->set_matrix(layer, static_cast<MatrixName>(name), {data, narrow != 0},
                                              static_cast<Format>(format));
  });
}

int midstream_set_vector(void* model, int layer, int name, const float* values) {
  return guarded([&] { static_cast<AnyModel*>(model)->set_vector(layer, static_cast<VectorName>(name), values); });
}

void midstream_set_embedding(void* model, const void* data, int narrow) {
  static_cast<AnyModel*>(model)->set_embedding({data, narrow != 0});
}

void* midstream_pool(void* model) { return static_cast<AnyModel*>(model)->pool(); }

int midstream_run(void* model, const Step* step) {
  return guarded([&] { static_cast<AnyModel*>(model)->run(*step); });
}


}  // extern "C"
