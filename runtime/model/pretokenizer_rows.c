/* SPDX-License-Identifier: MIT */
/* The patterns by name, from each tokenizer's published expression. One of the names that llama.cpp
 * knows is missing: "whitespace", which has its own tokenizer.ggml.model and belongs to a model
 * that does not write text. */
#include "runtime/model/pretokenizer_rows.h"

/* PCRE2's \s also matches U+180E, which Unicode no longer counts as a space; the published patterns
 * run on engines that follow Unicode. */
#define S     "\\p{White_Space}"
#define NOT_S "\\P{White_Space}"

#define TAIL "|" S "+(?!" NOT_S ")|" S "+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" S "\\p{L}\\p{N}]+" TAIL
#define CL100K(digits)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" S                 \
    "\\p{L}\\p{N}]+[\\r\\n]*|" S "*[\\r\\n]+" TAIL

/* Letters of scripts with upper and lower case, as DeepSeek's first tokenizers list them. They are
 * written as numbers, because normalisation would turn some of them into others. */
#define CASED                                                                                      \
    "A-Za-z\\x{00B5}\\x{00C0}-\\x{00D6}\\x{00D8}-\\x{00F6}\\x{00F8}-\\x{01BA}"                     \
    "\\x{01BC}-\\x{01BF}\\x{01C4}-\\x{0293}\\x{0295}-\\x{02AF}\\x{0370}-\\x{0373}"                 \
    "\\x{0376}\\x{0377}\\x{037B}-\\x{037D}\\x{037F}\\x{0386}\\x{0388}-\\x{038A}\\x{038C}"          \
    "\\x{038E}-\\x{03A1}\\x{03A3}-\\x{03F5}\\x{03F7}-\\x{0481}\\x{048A}-\\x{052F}"                 \
    "\\x{0531}-\\x{0556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}"                 \
    "\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}"                 \
    "\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}"                 \
    "\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}"         \
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}"                           \
    "\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}"                 \
    "\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}"         \
    "\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}"         \
    "\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}"                   \
    "\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}"                  \
    "\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}"                 \
    "\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}"                 \
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}"             \
    "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}"         \
    "\\x{1E900}-\\x{1E943}"
#define CJK "[一-龥ࠀ-一가-\\x{D7FF}]+"

/* Words as GPT-4o's tokenizer cuts them: where the case changes from lower to upper. */
#define UPPER   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define NO_WORD "[^\\r\\n\\p{L}\\p{N}]?"
#define ENDING  "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define O200K(ending, digits)                                                                      \
    NO_WORD UPPER "*" LOWER "+" ending "|" NO_WORD UPPER "+" LOWER "*" ending "|" digits "| ?[^" S \
                  "\\p{L}\\p{N}]+[\\r\\n/]*|" S "*[\\r\\n]+" TAIL

/* Kimi-K2's words: like GPT-4o's, but runs of Han characters are separate. The published expression
 * uses UPPER and LOWER without Han, by a look-ahead before each letter. The matcher would have to
 * remember each letter for backtracking, so this version does without: either a run of UPPER is
 * followed by a lower-case letter, or the word ends with the run's last letter without case. */
#define NOT_HAN      "(?!\\p{sc:Han})"
#define KIMI_UPPER   "(?:" NOT_HAN UPPER ")"
#define KIMI_LOWER   "(?:" NOT_HAN LOWER ")"
#define KIMI_NEITHER "(?:" NOT_HAN "[\\p{Lm}\\p{Lo}\\p{M}])"
#define KIMI_K2                                                                                    \
    "\\p{sc:Han}+|" NO_WORD "(?:" KIMI_UPPER "*+\\p{Ll}" KIMI_LOWER                                \
    "*+|(?:[\\p{Lu}\\p{Lt}]*+" KIMI_NEITHER "++)++)" ENDING "|" NO_WORD KIMI_UPPER "++" KIMI_LOWER \
    "*+" ENDING "|"                                                                                \
    "\\p{N}{1,3}| ?[^" S "\\p{L}\\p{N}]+[\\r\\n]*|" S "*[\\r\\n]+" TAIL

/* Cuts digits into threes from the right, in two steps: a pattern finds a run of digits; the next
 * one cuts a piece that is a whole run (\A and \z are the piece's ends). The published expressions
 * look ahead to the run's end from every third digit, which takes quadratic time. */
#define THREES(digit)                                                                              \
    "\\A" digit "{1,2}(?=(?:" digit "{3})++\\z)|(?:\\A(?=" digit "++\\z)|\\G(?!\\A))" digit "{3}|" \
    "\\A" digit "{1,2}\\z"
/* superbpe cuts a run of digits wherever a multiple of three digits is left up to the run's end.
 * This finds the first such place: it comes after none, one or two of the run's digits. */
#define BEGINS "(?<!\\p{Nd})"
#define FIRST_CUT                                                                                  \
    "(?:" BEGINS "|(?<=" BEGINS "\\p{Nd})|(?<=" BEGINS "\\p{Nd}{2}))(?=(?:\\p{Nd}{3})++(?!\\p{Nd}" \
    "))"
/* A word boundary behind a digit: none of these characters follows. The engine of the published
 * expression also counts the fractions and small digits of Latin-1 as parts of words. */
#define NO_WORD_FOLLOWS "(?![\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}²³¹¼-¾])"

#define DEEPSEEK3_CJK "[一-龥぀-ゟ゠-ヿ]+"
#define DEEPSEEK3_WORDS                                                                            \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                                       \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
#define DEEPSEEK3 DEEPSEEK3_WORDS "[\\r\\n]*|" S "*[\\r\\n]+" TAIL
#define BLOOM     " ?[^(" S "|.,!?…。，、।۔،)]+"

const moe_pretokenizer moe_pretokenizer_rows[] = {
    {.names = "gpt-2 gpt2 mpt jais trillion granite-docling phi-2 jina-es jina-de jina-v2-es "
              "jina-v2-de gigachat a.x-4.0 mellum modern-bert exaone4 roberta-bpe jina-v1-en "
              "jina-v2-code",
     .patterns = {GPT2}},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     .whole_words = true,
     .add_bos = true,
     .patterns = {CL100K("\\p{N}{1,3}")}},
    {.names = "qwen2 qwen3", .nfc = true, .patterns = {CL100K("\\p{N}")}},
    {.names = "qwen35",
     .nfc = true,
     .patterns = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" S
                  "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" S "*[\\r\\n]+" TAIL}},
    {.names = "deepseek-r1-qwen stablelm2 hunyuan solar-open grok-2 kormo f2llmv2 megrez",
     .patterns = {CL100K("\\p{N}")}},
    {.names = "olmo", .nfc = true, .patterns = {GPT2}},
    {.names = "dbrx smaug-bpe chatglm-bpe", .patterns = {CL100K("\\p{N}{1,3}")}},
    {.names = "glm4 glm5", .whole_words = true, .patterns = {CL100K("\\p{N}{1,3}")}},
    {.names = "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
     .patterns = {"\\p{N}", GPT2}},
    {.names = "falcon", .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {.names = "tekken", .whole_words = true, .add_bos = true, .patterns = {O200K("", "\\p{N}")}},
    {.names = "gpt-4o llama4 kanana2 talkie minimax-m2",
     .patterns = {O200K(ENDING, "\\p{N}{1,3}")}},
    {.names = "granite-embed-multi-97m",
     .whole_words = true,
     .patterns = {O200K(ENDING, "\\p{N}{1,3}")}},
    {.names = "youtu",
     .whole_words = true,
     .patterns =
         {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-"
          "龥぀-"
          "ゟ゠-"
          "ヿ]"
          "+",
          O200K(ENDING, "\\p{N}")}},
    {.names = "tiny_aya cohere2moe",
     .patterns = {"(?<!\\p{Nd})\\p{Nd}++" NO_WORD_FOLLOWS, THREES("\\p{Nd}"),
                  O200K(ENDING, "\\p{N}{1,3}")}},
    {.names = "kimi-k2", .patterns = {KIMI_K2}},
    {.names = "bailingmoe bailingmoe2 llada-moe",
     .patterns = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^" S
                  "\\p{L}\\p{N}]++[\\r\\n]*|" S "*[\\r\\n]" TAIL}},
    {.names = "seed-coder",
     .patterns = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" S
                  "\\p{L}\\p{N}\\r\\n]+|" S "*[\\r\\n]+" TAIL}},
    {.names = "ufakzeka",
     .patterns = {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" S "\\p{L}\\p{N}]+[\\r\\n]*|" S
                  "*[\\r\\n]+" TAIL}},
    {.names = "exaone-moe",
     .patterns = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*+(?: "
                  "\\p{L}\\p{M}*+)*+)++|\\p{N}| ?[^" S "\\p{L}\\p{N}]+[\\r\\n/]?|" S
                  "*[\\r\\n]" TAIL}},
    {.names = "laguna", .patterns = {"[^\\n]+|\\n+", CL100K("\\p{N}")}},
    {.names = "minicpm5", .whole_words = true, .patterns = {"\\p{N}{1,3}", CL100K("\\p{N}+")}},
    {.names = "jais-2", /* the look-behind only saves time, as in deepseek-llm below */
     .patterns = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" S
                  "\\p{L}\\p{N}]+[\\r\\n]*|(?<![^" NOT_S "\\r\\n])" S "*[\\r\\n]+|" S
                  "{512}(?!" NOT_S ")|" S "{256}(?!" NOT_S ")|" S "{128}(?!" NOT_S ")|" S
                  "{64}(?!" NOT_S ")|" S "{32}(?!" NOT_S ")|" S "{16}(?!" NOT_S ")|" S
                  "{8}(?!" NOT_S ")|" S "{4}(?!" NOT_S ")|" S "{1,2}(?!" NOT_S ")|" S}},
    {.names = "poro-chat bloom gpt3-finnish", .patterns = {BLOOM}},
    {.names = "viking", .patterns = {BLOOM, "\\p{N}"}},
    {.names = "chameleon",
     .add_bos = true,
     .patterns = {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}",
                  "[\\p{P}!-/:-@\\[-`{-~]", GPT2}},
    {.names = "superbpe", .patterns = {"\\p{N}+", FIRST_CUT, "\\G\\p{Nd}{3}(?=\\p{Nd}{3})"}},
    {.names = "afmoe",
     .patterns =
         {"\\p{N}+", THREES("\\p{N}"),
          "[一-鿿㐀-䶿豈-\\x{FAFF}぀-ゟ゠-ヿ･-ﾟ⼀-\\x{2FDF}เ-\\x{0E7F}\\x{0E80}-"
          "\\x{"
          "0EFF}ក-"
          "\\x{17FF}"
          "က-႟ꩠ-ꩿꧠ-\\x{A9FF}가-\\x{D7AF}ᄀ-ᇿ]+",
          DEEPSEEK3}},
    /* In "spaces at the end" the look-behind only saves time: a run of spaces is tried once instead
     * of from each of its characters. */
    {.names = "deepseek-llm",
     .patterns = {"[\\r\\n]", S "?[" CASED "]+", S "?[!-/:-~！-／：-～‘-‟\\x{3000}-\\x{3002}]+",
                  "(?<!" S ")" S "++$", CJK, "\\p{N}"}},
    {.names = "deepseek-coder",
     .patterns = {"[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", CJK, "\\p{N}"}},
    {.names = "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     .patterns = {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3}},
    {.names = "spark2_5",
     .patterns = {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3_WORDS "|[\\r\\n]" TAIL, "\\p{N}"}},
    {.names = "gemma4 granite-embed-multi-311m", .add_bos = true, .by_characters = true},
    {.names = "sarvam-moe", .by_characters = true},
    {.names = "default",
     .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

const size_t moe_pretokenizer_n_rows =
    sizeof moe_pretokenizer_rows / sizeof moe_pretokenizer_rows[0];
