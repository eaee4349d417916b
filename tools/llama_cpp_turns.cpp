// What llama.cpp turns: the first head of each GGML_OP_ROPE of a graph, before and after, for single tokens at positions.
// llama_cpp_turns MODEL.gguf N_CTX POSITION... writes for each: "layer name width tokens dims mode\n", then before and after as float32.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

static int layer = -1;
static std::vector<float> before;

static std::vector<float> read_head(const ggml_tensor * t) {
    if (t->type != GGML_TYPE_F32) { fprintf(stderr, "%s is not of float32\n", t->name); exit(3); }
    std::vector<float> made;
    for (int64_t i = 0; i < t->ne[2]; i++) {
        const float * row = (const float *) ((const char *) t->data + i * t->nb[2]);
        made.insert(made.end(), row, row + t->ne[0]);
    }
    return made;
}

// Asked before each node, and told after it: each is computed by itself, for a result may take the place of what it is made of.
static bool watch(ggml_tensor * t, bool is_asked, void *) {
    const char * number = strrchr(t->name, '-');
    if (number && number[1] >= '0' && number[1] <= '9') layer = atoi(number + 1);
    if (t->op != GGML_OP_ROPE) return true;
    if (is_asked) { before = read_head(t->src[0]); return true; }
    const std::vector<float> after = read_head(t);
    printf("%d %s %d %d %d %d\n", layer, t->name, (int) t->ne[0], (int) t->ne[2], t->op_params[1], t->op_params[2]);
    fwrite(before.data(), 4, before.size(), stdout);
    fwrite(after.data(), 4, after.size(), stdout);
    return true;
}

static void say(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char ** argv) {
    llama_log_set(say, nullptr);
    ggml_backend_load_all_from_path(getenv("LLAMA_CPP_BINARIES"));
    llama_model_params loading = llama_model_default_params();
    loading.n_gpu_layers = 0;
    llama_model * model = llama_model_load_from_file(argv[1], loading);
    if (!model) return 1;
    const int count = argc - 3;
    llama_context_params made = llama_context_default_params();
    made.n_ctx = atoi(argv[2]);
    made.n_batch = made.n_ubatch = 64;
    made.n_seq_max = count;  // one text for each position: positions of a text have to follow one another
    made.kv_unified = true;
    made.n_threads = made.n_threads_batch = 1;
    made.cb_eval = watch;
    llama_context * context = llama_init_from_model(model, made);
    if (!context) return 1;
    llama_batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int i = 0; i < count; i++) {
        batch.token[i] = 3 + i;
        batch.pos[i] = atoi(argv[3 + i]);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = i;
        batch.logits[i] = 0;
    }
    const bool is_encoder = llama_model_has_encoder(model) && !llama_model_has_decoder(model);
    const int failed = is_encoder ? llama_encode(context, batch) : llama_decode(context, batch);
    fflush(stdout);
    _Exit(failed ? 2 : 0);
}
