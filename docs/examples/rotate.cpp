// Rotate the halves of heads in place: x (tokens, heads, head_dim), table (rows, r): cos, then sin.
extern "C" void rotate(float* x, const float* table, const long long* positions, int tokens, int heads,
                       int head_dim, int r) {
    for (int token = 0; token < tokens; ++token) {
        const float* cos = table + positions[token] * r;
        const float* sin = cos + r / 2;
        for (int head = 0; head < heads; ++head, x += head_dim) {
            for (int i = 0; i < r / 2; ++i) {
                const float a = x[i], b = x[i + r / 2];
                x[i] = a * cos[i] - b * sin[i];
                x[i + r / 2] = b * cos[i] + a * sin[i];
            }
        }
    }
}
