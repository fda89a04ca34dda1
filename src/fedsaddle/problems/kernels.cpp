// Products of few rows with the weights of many clients, and convolutions of woven pictures: what
// libraries are slow at, because their blocks are for larger matrices and for more channels. And
// sums of vectors in pieces, where a call for each piece takes as long as its numbers.

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

// A block's sums, and what they are made of, have to fit into the processor's registers.
#ifdef __AVX512F__
constexpr int BYTES = 64;
constexpr int ROWS = 5;
constexpr int PIXELS = 4, CHANNELS = 6;
constexpr int TAPS = 5, GRADIENTS = 4;
#else
constexpr int BYTES = 32;
constexpr int ROWS = 2;
constexpr int PIXELS = 3, CHANNELS = 4;
constexpr int TAPS = 3, GRADIENTS = 4;
#endif
constexpr int FOUR = 4;

template <class T, int SIZE>
struct Vector {
  typedef T type __attribute__((vector_size(SIZE)));
};
template <class T>
using Lanes = typename Vector<T, BYTES>::type;
template <class T>
using Four = typename Vector<T, FOUR * sizeof(T)>::type;
template <class T>
using Bit = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <class T>
using Bits = Lanes<Bit<T>>;
template <class T>
constexpr int64_t WIDTH = BYTES / sizeof(T);

// A loop over registers: unless it is unrolled early, they are written to memory in every turn.
#define EACH(j, count) _Pragma("GCC unroll 8") for (int j = 0; j < count; j++)

template <class L>
inline L in_register(L lanes) {
  asm("" : "+v"(lanes));  // else every product would load it again
  return lanes;
}

template <class L, class T>
inline L lanes_at(const T* place) {  // wherever that is: no vector need begin there
  L lanes;
  std::memcpy(&lanes, place, sizeof(L));
  return lanes;
}

template <class T>
inline Lanes<T> loaded(const T* place) {
  return in_register(lanes_at<Lanes<T>>(place));
}

template <class T>
inline void store(T* place, Lanes<T> lanes) {
  std::memcpy(place, &lanes, BYTES);
}

struct Range {
  int64_t first, last;
};

// Part number so-and-so of a range that is cut into as few parts as possible, of about one size.
int64_t parts(int64_t count, int64_t largest) { return (count + largest - 1) / largest; }
Range part(int64_t count, int64_t parts, int64_t number) {
  return {count * number / parts, count * (number + 1) / parts};
}

// The functions for blocks of all sizes from 1 by 1 to A by B.
template <template <class, int, int> class Block, class T, int A, int B>
auto block(int64_t a, int64_t b) {
  static constexpr auto functions = []<int... J>(std::integer_sequence<int, J...>) {
    return std::array{&Block<T, J / B + 1, J % B + 1>::run...};
  }(std::make_integer_sequence<int, A * B>{});
  return functions[(a - 1) * B + b - 1];
}

// ---- rows times weights -------------------------------------------------------------------------

// The lanes J of two vectors, those of b after those of a.
template <class T, int... J>
inline Lanes<T> shuffled(Lanes<T> a, Lanes<T> b) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, J...);
#else  // GCC before 12
  return __builtin_shuffle(a, b, Bits<T>{J...});
#endif
}

// Sums of neighbours STEP apart, those of a and of b in turns.
template <class T, int STEP, int... J>
inline Lanes<T> pairs_added(Lanes<T> a, Lanes<T> b, std::integer_sequence<int, J...>) {
  constexpr int W = WIDTH<T>;
  return shuffled<T, ((J & STEP) ? W + J - STEP : J)...>(a, b) +
         shuffled<T, ((J & STEP) ? W + J : J + STEP)...>(a, b);
}

// The sum of all lanes, of each of four vectors.
template <class T>
inline Four<T> added_up(Lanes<T> a, Lanes<T> b, Lanes<T> c, Lanes<T> d) {
  constexpr auto lanes = std::make_integer_sequence<int, WIDTH<T>>{};
  const auto ab = pairs_added<T, 1>(a, b, lanes), cd = pairs_added<T, 1>(c, d, lanes);
  const auto abcd = pairs_added<T, 2>(ab, cd, lanes);
  Four<T> fours[WIDTH<T> / FOUR];
  std::memcpy(fours, &abcd, BYTES);
  for (int j = 1; j < WIDTH<T> / FOUR; j++) fours[0] += fours[j];
  return fours[0];
}

// Of a last vector those lanes that a whole number of vectors has left over.
template <class T>
inline Bits<T> left_over(int64_t count) {
  static constexpr auto bits = [] {
    std::array<Bit<T>, 2 * WIDTH<T>> found{};
    for (int64_t j = WIDTH<T>; j < 2 * WIDTH<T>; j++) found[j] = -1;
    return found;
  }();
  return lanes_at<Bits<T>>(bits.data() + count);
}

// R rows times O weights, each `length` long and one after the other: lanes run along them.
template <class T, int R, int O>
struct Dots {
  static void run(const T* rows, const T* weights, T* out, int64_t length, int64_t outputs) {
    constexpr int64_t W = WIDTH<T>;
    Lanes<T> sums[R][FOUR] = {};
    auto add = [&](int64_t at, auto of) {
      Lanes<T> factors[O];
      EACH(o, O) factors[o] = of(weights + o * length + at);
      EACH(r, R) {
        const Lanes<T> value = of(rows + r * length + at);
        EACH(o, O) sums[r][o] += value * factors[o];
      }
    };
    const int64_t rest = length % W;
    for (int64_t at = 0; at + W <= length; at += W)
      add(at, [](const T* place) { return loaded(place); });
    if (rest)
      add(length - W, [mask = left_over<T>(rest)](const T* place) {
        return (Lanes<T>)(lanes_at<Bits<T>>(place) & mask);
      });
    EACH(r, R) {
      const Four<T> four = added_up<T>(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
      EACH(o, O) out[r * outputs + o] = four[o];
    }
  }
};

// R rows of `length` factors for as many rows of weights, added up in V vectors of `outputs`
// numbers, from vector number `first` on: the last one begins where it just fits.
template <class T, int R, int V>
struct Combinations {
  static void run(const T* rows, const T* weights, T* out, int64_t length, int64_t outputs,
                  int64_t first) {
    Lanes<T> sums[R][V] = {};
    int64_t at[V];
    EACH(v, V) at[v] = std::min((first + v) * WIDTH<T>, outputs - WIDTH<T>);
    for (int64_t j = 0; j < length; j++, weights += outputs) {
      Lanes<T> factors[V];
      EACH(v, V) factors[v] = loaded(weights + at[v]);
      EACH(r, R) {
        const Lanes<T> value = in_register(Lanes<T>{} + rows[r * length + j]);
        EACH(v, V) sums[r][v] += value * factors[v];
      }
    }
    EACH(r, R)
      EACH(v, V) store(out + r * outputs + at[v], sums[r][v]);
  }
};

template <class T>
void multiply(const at::Tensor& rows, const at::Tensor& weights, at::Tensor& outputs, bool turned) {
  const int64_t count = rows.size(1), length = rows.size(2), width = outputs.size(2);
  TORCH_CHECK((turned ? width : length) >= WIDTH<T>, "shorter than a vector");
  const int64_t groups = parts(count, ROWS), vectors = parts(width, WIDTH<T>);
  const int64_t strips = turned ? parts(vectors, FOUR) : parts(width, FOUR);
  for (int64_t client = 0; client < rows.size(0); client++) {
    const T* from = rows.const_data_ptr<T>() + client * count * length;
    const T* by = weights.const_data_ptr<T>() + client * length * width;
    T* to = outputs.data_ptr<T>() + client * count * width;
    for (int64_t strip = 0; strip < strips; strip++)
      for (int64_t group = 0; group < groups; group++) {
        const Range own = part(count, groups, group);
        const int64_t size = own.last - own.first;
        const T* first = from + own.first * length;
        T* out = to + own.first * width;
        if (turned) {
          const Range some = part(vectors, strips, strip);
          block<Combinations, T, ROWS, FOUR>(size, some.last - some.first)(
              first, by, out, length, width, some.first);
        } else {
          const int64_t o = strip * FOUR;
          block<Dots, T, ROWS, FOUR>(size, std::min<int64_t>(FOUR, width - o))(
              first, by + o * length, out + o, length, width);
        }
      }
  }
}

// Every client's rows (clients, b, in) times its weights (clients, out, in); turned, rows
// (clients, b, out) times these. What lanes run along has to be as long as a vector.
at::Tensor rows_times_weights(const at::Tensor& rows, const at::Tensor& weights, bool turned) {
  at::Tensor outputs =
      at::empty({rows.size(0), rows.size(1), weights.size(turned ? 2 : 1)}, rows.options());
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "rows_times_weights", [&] {
    multiply<scalar_t>(rows.contiguous(), weights.contiguous(), outputs, turned);
  });
  return outputs;
}

// ---- convolutions -------------------------------------------------------------------------------

// Woven pictures are (n, y, x, channel, WIDTH), see woven.py: a lane for each client's picture.
struct Shape {
  int64_t pictures, height, width, in, out, rows, columns, padding;
  int64_t out_height() const { return height + 2 * padding - rows + 1; }
  int64_t out_width() const { return width + 2 * padding - columns + 1; }
  int64_t padded_width() const { return width + 2 * padding; }
};

// Adds the products of P pixels, `step` apart, with each of O neighbouring channels' factors.
template <class T, int P, int O>
inline void add_products(Lanes<T> (&sums)[P][O], const T* pixels, int64_t step, const T* channels) {
  Lanes<T> factors[O];
  EACH(o, O) factors[o] = loaded(channels + o * WIDTH<T>);
  EACH(p, P) {
    const Lanes<T> value = loaded(pixels + p * step);
    EACH(o, O) sums[p][o] += value * factors[o];
  }
}

// The sums of P neighbouring pixels of the output in O of its channels. Of the kernel's rows and
// columns those are given that meet the picture; its row 0 would be at the picture's row `top`.
template <class T, int P, int O>
struct Convolved {
  static void run(const Shape& s, const T* in, const T* weights, T* out, int64_t top, Range rows,
                  Range columns) {
    constexpr int64_t W = WIDTH<T>;
    Lanes<T> sums[P][O] = {};
    for (int64_t row = rows.first; row < rows.last; row++) {
      const T* pixel = in + ((top + row) * s.padded_width() + columns.first) * s.in * W;
      const T* weight = weights + (row * s.columns + columns.first) * s.in * s.out * W;
      const int64_t taps = (columns.last - columns.first) * s.in;  // neighbours in memory
      for (int64_t tap = 0; tap < taps; tap++, pixel += W, weight += s.out * W)
        add_products<T, P, O>(sums, pixel, s.in * W, weight);
    }
    EACH(p, P)
      EACH(o, O) store(out + (p * s.out + o) * W, sums[p][o]);
  }
};

// Adds one picture to the sums of P neighbouring columns of the kernel and O channels of the
// output, over the given rows of the output; the first would be at the picture's row `top`.
template <class T, int P, int O>
struct Correlated {
  static void run(const Shape& s, const T* in, const T* gradient, T* out, int64_t top, Range rows) {
    constexpr int64_t W = WIDTH<T>;
    const int64_t step = s.in * s.out * W;
    Lanes<T> sums[P][O];
    EACH(p, P)
      EACH(o, O) sums[p][o] = loaded(out + p * step + o * W);
    for (int64_t y = rows.first; y < rows.last; y++) {
      const T* pixel = in + (top + y) * s.padded_width() * s.in * W;
      const T* arriving = gradient + y * s.out_width() * s.out * W;
      for (int64_t x = 0; x < s.out_width(); x++, pixel += s.in * W, arriving += s.out * W)
        add_products<T, P, O>(sums, pixel, s.in * W, arriving);
    }
    EACH(p, P)
      EACH(o, O) store(out + p * step + o * W, sums[p][o]);
  }
};

// Pictures with columns of zeros on both sides, one at a time.
template <class T>
class Padded {
 public:
  Padded(const Shape& s, const at::Tensor& pictures)
      : s(s), pictures(pictures.const_data_ptr<T>()) {
    if (s.padding)
      room = at::zeros({s.height, s.padded_width(), s.in, WIDTH<T>}, pictures.options());
  }

  const T* operator[](int64_t number) {
    const int64_t pixel = s.in * WIDTH<T>, row = s.width * pixel;
    const T* picture = pictures + number * s.height * row;
    if (!s.padding) return picture;
    T* inside = room.data_ptr<T>() + s.padding * pixel;
    for (int64_t y = 0; y < s.height; y++)
      std::memcpy(inside + y * s.padded_width() * pixel, picture + y * row, row * sizeof(T));
    return room.const_data_ptr<T>();
  }

 private:
  const Shape& s;
  const T* pictures;
  at::Tensor room;
};

// Weights, however they lie, as (row, column, in, out, WIDTH): all pictures of a client have its
// own. Turned, their rows and columns run backwards, and what came out goes in.
template <class T>
at::Tensor spread_over_lanes(const Shape& s, const at::Tensor& weights, bool turned) {
  const int64_t clients = weights.size(4), lane_step = weights.stride(4);
  const int64_t in_step = weights.stride(turned ? 3 : 2), out_step = weights.stride(turned ? 2 : 3);
  at::Tensor spread = at::empty({s.rows, s.columns, s.in, s.out, WIDTH<T>}, weights.options());
  T* to = spread.data_ptr<T>();
  for (int64_t row = 0; row < s.rows; row++)
    for (int64_t column = 0; column < s.columns; column++) {
      const T* tap = weights.const_data_ptr<T>() +
                     (turned ? s.rows - 1 - row : row) * weights.stride(0) +
                     (turned ? s.columns - 1 - column : column) * weights.stride(1);
      for (int64_t i = 0; i < s.in; i++)
        for (int64_t o = 0; o < s.out; o++, to += WIDTH<T>) {
          const T* from = tap + i * in_step + o * out_step;
          for (int64_t client = 0; client < clients; client++) to[client] = from[client * lane_step];
          for (int64_t lane = clients; lane < WIDTH<T>; lane += clients)
            std::memcpy(to + lane, to, clients * sizeof(T));
        }
    }
  return spread;
}

// (..., WIDTH) to (..., clients): the sum over a client's pictures.
template <class T>
at::Tensor added_up_by_client(const at::Tensor& lanes, int64_t clients) {
  std::vector<int64_t> sizes = lanes.sizes().vec();
  sizes.back() = clients;
  at::Tensor sums = at::empty(sizes, lanes.options());
  const int64_t count = lanes.numel() / WIDTH<T>;
  const T* from = lanes.const_data_ptr<T>();
  T* to = sums.data_ptr<T>();
  for (int64_t j = 0; j < count; j++, from += WIDTH<T>, to += clients) {
    std::memcpy(to, from, clients * sizeof(T));
    for (int64_t lane = clients; lane < WIDTH<T>; lane += clients)
      for (int64_t client = 0; client < clients; client++) to[client] += from[lane + client];
  }
  return sums;
}

template <class T>
at::Tensor convolved(const Shape& s, const at::Tensor& pictures, const at::Tensor& weights,
                     bool turned) {
  constexpr int64_t W = WIDTH<T>;
  TORCH_CHECK(pictures.size(4) == W, "pictures are not woven for this processor");
  const at::Tensor spread = spread_over_lanes<T>(s, weights, turned);
  at::Tensor outputs =
      at::empty({s.pictures, s.out_height(), s.out_width(), s.out, W}, pictures.options());
  Padded<T> padded(s, pictures);
  const int64_t groups = parts(s.out, CHANNELS);
  for (int64_t n = 0; n < s.pictures; n++) {
    const T* picture = padded[n];
    T* out = outputs.data_ptr<T>() + n * s.out_height() * s.out_width() * s.out * W;
    for (int64_t group = 0; group < groups; group++) {
      const Range channels = part(s.out, groups, group);
      for (int64_t y = 0; y < s.out_height(); y++) {
        const int64_t top = y - s.padding;
        const Range rows{std::max<int64_t>(0, -top), std::min(s.rows, s.height - top)};
        for (int64_t x = 0; x < s.out_width(); x += PIXELS) {
          const int64_t pixels = std::min<int64_t>(PIXELS, s.out_width() - x);
          const Range columns{std::max<int64_t>(0, s.padding - (x + pixels - 1)),
                              std::min(s.columns, s.width + s.padding - x)};
          block<Convolved, T, PIXELS, CHANNELS>(pixels, channels.last - channels.first)(
              s, picture + x * s.in * W, spread.const_data_ptr<T>() + channels.first * W,
              out + ((y * s.out_width() + x) * s.out + channels.first) * W, top, rows, columns);
        }
      }
    }
  }
  return outputs;
}

template <class T>
at::Tensor correlated(const Shape& s, const at::Tensor& pictures, const at::Tensor& gradients,
                      int64_t clients) {
  constexpr int64_t W = WIDTH<T>;
  TORCH_CHECK(pictures.size(4) == W, "pictures are not woven for this processor");
  at::Tensor sums = at::zeros({s.rows, s.columns, s.in, s.out, W}, pictures.options());
  Padded<T> padded(s, pictures);
  const int64_t groups = parts(s.out, GRADIENTS), strips = parts(s.columns, TAPS);
  for (int64_t n = 0; n < s.pictures; n++) {
    const T* picture = padded[n];
    const T* gradient =
        gradients.const_data_ptr<T>() + n * s.out_height() * s.out_width() * s.out * W;
    for (int64_t group = 0; group < groups; group++) {
      const Range channels = part(s.out, groups, group);
      for (int64_t row = 0; row < s.rows; row++) {
        const int64_t top = row - s.padding;
        const Range rows{std::max<int64_t>(0, -top), std::min(s.out_height(), s.height - top)};
        for (int64_t i = 0; i < s.in; i++) {
          for (int64_t strip = 0; strip < strips; strip++) {
            const Range taps = part(s.columns, strips, strip);
            const int64_t first = ((row * s.columns + taps.first) * s.in + i) * s.out;
            block<Correlated, T, TAPS, GRADIENTS>(taps.last - taps.first,
                                                  channels.last - channels.first)(
                s, picture + (taps.first * s.in + i) * W, gradient + channels.first * W,
                sums.data_ptr<T>() + (first + channels.first) * W, top, rows);
          }
        }
      }
    }
  }
  return added_up_by_client<T>(sums, clients);
}

// Pictures (n, y, x, in, WIDTH) and weights (row, column, in, out, clients).
at::Tensor convolve(const at::Tensor& pictures, const at::Tensor& weights, int64_t padding,
                    bool turned) {
  const int64_t out = weights.size(turned ? 2 : 3);
  const Shape s{pictures.size(0), pictures.size(1), pictures.size(2), pictures.size(3),
                out,              weights.size(0),  weights.size(1),  padding};
  return AT_DISPATCH_FLOATING_TYPES(pictures.scalar_type(), "convolve", [&] {
    return convolved<scalar_t>(s, pictures.contiguous(), weights, turned);
  });
}

// Pictures and gradients of outputs (n, y, x, out, WIDTH); the gradient of the weights.
at::Tensor correlate(const at::Tensor& pictures, const at::Tensor& gradients, int64_t padding,
                     int64_t clients) {
  const int64_t height = pictures.size(1), width = pictures.size(2);
  const int64_t rows = height + 2 * padding - gradients.size(1) + 1;
  const int64_t columns = width + 2 * padding - gradients.size(2) + 1;
  const Shape s{pictures.size(0),  height, width,   pictures.size(3),
                gradients.size(3), rows,   columns, padding};
  return AT_DISPATCH_FLOATING_TYPES(pictures.scalar_type(), "correlate", [&] {
    return correlated<scalar_t>(s, pictures.contiguous(), gradients.contiguous(), clients);
  });
}

// ---- sums of clients' vectors -------------------------------------------------------------------

// Bytes by which rows are asked for ahead of their use: long ones lie in many pages of memory, each
// of which has to be found first.
constexpr int64_t AHEAD = 2048;

// Writes the sum of the rows times their shares; whether it is numbers throughout, unless they are
// so large that they add up to none.
template <class T>
bool sum_of_rows(const at::Tensor& rows, c10::ArrayRef<double> shares, T* out) {
  const int64_t count = rows.size(0), length = rows.size(1), step = rows.stride(0);
  const T* first = rows.const_data_ptr<T>();
  const std::vector<T> share(shares.begin(), shares.end());
  Lanes<T> total[FOUR]{};
  T rest = 0;
  int64_t at = 0;
  for (; at + FOUR * WIDTH<T> <= length; at += FOUR * WIDTH<T>) {
    Lanes<T> sums[FOUR]{};
    for (int64_t j = 0; j < count; j++) {
      const T* place = first + j * step + at;
      EACH(v, FOUR) {
        __builtin_prefetch(place + v * WIDTH<T> + AHEAD / sizeof(T));
        sums[v] += share[j] * lanes_at<Lanes<T>>(place + v * WIDTH<T>);
      }
    }
    EACH(v, FOUR) {
      store(out + at + v * WIDTH<T>, sums[v]);
      total[v] += sums[v];
    }
  }
  for (; at < length; at++) {
    T sum = 0;
    for (int64_t j = 0; j < count; j++) sum += share[j] * first[j * step + at];
    out[at] = sum;
    rest += sum;
  }
  for (const Lanes<T>& lanes : total) {
    for (int64_t j = 0; j < WIDTH<T>; j++) rest += lanes[j];
  }
  return std::isfinite(rest);
}

// Of a matrix in pieces side by side.
bool add_up(at::TensorList pieces, c10::ArrayRef<double> shares, const at::Tensor& out) {
  TORCH_CHECK(out.is_contiguous(), "the sum is not contiguous");
  int64_t at = 0;
  bool finite = true;
  for (const at::Tensor& piece : pieces) {
    TORCH_CHECK(piece.dim() == 2 && piece.size(0) == int64_t(shares.size()), "not a row per share");
    TORCH_CHECK(piece.scalar_type() == out.scalar_type(), "numbers of several kinds");
    TORCH_CHECK(at + piece.size(1) <= out.numel(), "the sum is shorter than the rows");
    AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "add_up", [&] {
      const at::Tensor rows = piece.stride(1) == 1 ? piece : piece.contiguous();
      finite &= sum_of_rows<scalar_t>(rows, shares, out.mutable_data_ptr<scalar_t>() + at);
    });
    at += piece.size(1);
  }
  TORCH_CHECK(at == out.numel(), "the sum is longer than the rows");
  return finite;
}

}  // namespace

TORCH_LIBRARY(fedsaddle, library) {
  library.def("rows_times_weights(Tensor rows, Tensor weights, bool turned) -> Tensor");
  library.def("convolve(Tensor pictures, Tensor weights, int padding, bool turned) -> Tensor");
  library.def("correlate(Tensor pictures, Tensor gradients, int padding, int clients) -> Tensor");
  library.def("add_up(Tensor[] pieces, float[] shares, Tensor(a!) out) -> bool");
}

// Nobody asks for the derivative of a sum that is written somewhere.
TORCH_LIBRARY_IMPL(fedsaddle, Autograd, library) {
  library.impl("add_up", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(fedsaddle, CPU, library) {
  library.impl("rows_times_weights", rows_times_weights);
  library.impl("convolve", convolve);
  library.impl("correlate", correlate);
  library.impl("add_up", add_up);
}
