// The weight matrix W [rows, K] in the format of the variant. Each piece gives
//   CHUNK4                      vec4s of the input that one 16-byte load covers, at most 8
//   weight4(row, k4)            elements 4·k4 … 4·k4+3 of a row
//   alias Words                 what a row's chunk is stored as
//   load_words(row, c)          the words of the row's chunk c
//   dot_words(words, x, x_sum)  their dot product with x, whose elements sum to x_sum. With BITS_4 the vec4s of
//                               x come in pairs: of eight elements first those at even places
#ifdef WEIGHT_F32
#import "lib/weight_f32.wgsl"
#endif
#ifdef WEIGHT_F16
#import "lib/weight_f16.wgsl"
#endif
#ifdef WEIGHT_BF16
#import "lib/weight_bf16.wgsl"
#endif
#ifdef WEIGHT_AFFINE
#import "lib/weight_affine.wgsl"
#endif
