"""The strings of golden part (d). Data only, written for these tests or drawn from a seed."""
import random
import unicodedata

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.", "I'm sure they've said we'll see; it's he'd I'D WE'LL don't",
    "Der Fluß trägt große Äpfel über Öl; ÄÖÜß.", "Où est l'hôtel ? Ça coûte 12,50 € « à côté ».",
    "¿Dónde está el niño? ¡Mañana será otro día!", "Não há coração que não sinta saudade.",
    "Zażółć gęślą jaźń", "Příliš žluťoučký kůň úpěl ďábelské ódy", "Fıstıkçı şahap İstanbul'da",
    "Îți place să mănânci mămăligă?", "Árvíztűrő tükörfúrógép", "Þórður ætlaði að fá sér kæstan hákarl",
    "Съешь же ещё этих мягких французских булок", "Ґанок, їжак, єдність і щастя", "Љубазни фењерџија чађавог лица",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία", "Բարեւ ձեզ, ինչպե՞ս եք", "გამარჯობა მსოფლიო",
    "דג סקרן שט בים מאוכזב", "שָׁלוֹם עֲלֵיכֶם", "نص حكيم له سر قاطع", "السَّلَامُ عَلَيْكُمْ", "خوش آمدید، حال شما چطور است؟",
    "اردو زبان بہت میٹھی ہے", "नमस्ते दुनिया, क्या हाल है?", "ऋषियों को सताने वाले दुष्ट", "আমার সোনার বাংলা", "ਸਤ ਸ੍ਰੀ ਅਕਾਲ",
    "ગુજરાતી ભાષા", "தமிழ் மொழி இனிது", "తెలుగు లిపి అందమైనది", "ಕನ್ನಡ ನಾಡು", "മലയാളം അക്ഷരമാല", "සිංහල භාෂාව",
    "ภาษาไทยไม่มีช่องว่าง", "ພາສາລາວ", "မြန်မာစာ", "ភាសាខ្មែរ", "བོད་སྐད།", "Монгол хэл ᠮᠣᠩᠭᠣᠯ", "አማርኛ ቋንቋ ነው።",
    "今天天气很好，我们去公园吧。", "繁體中文：臺灣、龍、鬱。", "吾輩は猫である。名前はまだ無い。", "カタカナとひらがなと漢字、ｶﾀｶﾅ", "안녕하세요, 반갑습니다! ㅋㅋㅋ",
    "Tiếng Việt có nhiều dấu: ượ ỡ ẫ ặ", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "ᚠᚢᚦᚨᚱᚲ", "𐍅𐌿𐌻𐍆𐌹𐌻𐌰", "𒀀𒁀 cuneiform", "ꦧꦱꦗꦮ", "ⵜⴰⵎⴰⵣⵉⵖⵜ",
    "Ａｌｐｈａ ｗｉｄｅ １２３", "ℌ𝔢𝔩𝔩𝔬 𝕎𝕠𝕣𝕝𝕕 𝒞𝓊𝓇𝓈𝒾𝓋𝑒", "½ ¾ ² ³ ₁ ₂ Ⅷ ⅻ ① ㊗", "™ © ® ℃ № ‰ ′ ″",
]
NUMBERS = [
    "0", "7", "42", "1234567890", "3.14159", "1,000,000", "1e-10", "0x1F", "2026-11-29", "12:34:56", "192.168.0.1", "+41 44 123 45 67",
    "1/2", "50%", "$9.99", "-273.15°C", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "一二三四五", "１２３", "a1b2c3", "v1.2.3-rc.4+build5", "1_000", "10⁶",
]
SPACES = [
    " ", "  ", "   ", "    ", "        ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r", "\r\n", "\r\n\r\n", " \n", "\n ", " \n \n ", "\t\n\t",
    " a", "  a", "   a", "a ", "a  ", "a   b", "a\tb", "a \tb", "a\nb", "a\n\nb", "a \n b", "a\r\nb", "a\r\n  b", "a  \n\n  b", "a\n    b\n        c",
    "\u00a0", "a\u00a0b", "\u3000全角\u3000", "\u2003em\u2009thin", "a\u2028b\u2029c", "a\u0085b", "a\u200bb", "\ufeffbom", "a\x0bb\x0cc",
    "\x00", "a\x00b", "\x1b[31mred\x1b[0m", "\x7f", " " * 40 + "x", "\n" * 20, "x" + " " * 100, "\t" * 12 + "y", " \r \n ",
]
CODE = [
    "def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }", "fn main() -> Result<(), Box<dyn Error>> {\n\tOk(())\n}",
    "SELECT * FROM t WHERE a >= 10 AND b <> 'x';", "<div class=\"a b\">&nbsp;</div>", "{\"a\": [1, 2.5, null, true]}", "#include <stdio.h>",
    "git commit -m \"fix: x\" && git push", "a->b::c<d>&&e||!f", "x = y if z else w  # comment", "/* multi\n   line */", "https://example.org/a?b=c&d=%20#e",
    "user@example.org", "C:\\Users\\x\\file.txt", "/usr/local/bin", "${HOME}/.config", "__init__ camelCase snake_case SCREAMING_CASE kebab-case",
    "lambda x: x[::-1]", "λx.x ∀x∈ℝ: x²≥0 → ∃y", "\\frac{a}{b} $\\alpha$", "```python\nprint('hi')\n```", "| a | b |\n|---|---|\n", "- [ ] todo\n- [x] done",
    "!!!", "...", "?!?!", "--------", "=====", "/////", "(((a)))", "[[[]]]", "#$%^&*()", "a.b.c.d", "'''", "\"\"\"", "'s", "'S", "'re", "'RE'Ve", "x's'll", "’s",
    "'\u017f", "it\u2019s", "don`t", ">>>", "<<<", "</", "<|", "|>", "<||>",
]
EMOJI = [
    "😀", "😀😀😀", "👍🏽", "👩‍👩‍👧‍👦", "👩🏿‍🚀", "🏳️‍🌈", "🇨🇭🇫🇷", "1️⃣", "❤️", "☎︎", "☎️", "🤷🏻‍♀️ ok", "text😀text", "🧑‍💻 codes", "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "♥♦♣♠", "←↑→↓", "▁▂▃▄▅",
]
COMBINING = [
    "e\u0301", "é", "A\u030a \u212b Å", "\u1e9b\u0323", "q\u0307\u0323", "q\u0323\u0307", "\u0301alone", "a\u0300\u0301\u0302\u0303", "Z̸͓a̴̱l̵̙g̶̈o̷",
    "\u0e01\u0e33", "\u0915\u094d\u0937", "\uac00 \u1100\u1161", "\u1112\u1161\u11ab", "ﬁ ﬂ", "\u0130\u0131", "ǅ", "\u2126 Ω", "\uf900 豈", "\u0344", "n\u0303o", "\u05e9\u05c1", "1\u0301", " \u0301", "a \u0308b", "\u0958",
]
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<think>", "</think>", "<think>\n\n</think>\n\n",
    "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>", "<tool_response>\nok\n</tool_response>", "<|vision_start|><|image_pad|><|vision_end|>",
    "<|video_pad|>", "<|vision_pad|>", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>x<|file_sep|>y", "<|object_ref_start|>x<|object_ref_end|>",
    "<|box_start|>(1,2)<|box_end|>", "<|quad_start|><|quad_end|>", "<|audio_start|><|audio_pad|><|audio_end|>", "<tts_pad><tts_text_bos><tts_text_eod><tts_text_bos_single>",
    "a<|im_end|>b", " <|im_end|> ", "<|im_end|><|im_end|>", "<|im_end", "im_end|>", "<| im_end |>", "<|IM_END|>", "<Think>", "< think>", "<think", "</think", "</tool_call", "<|im_start|><think>x",
    "<|im_\u200bend|>", "don't<|im_end|>'s", "\n<|im_end|>\n", "é<think>é", "e\u0301<think>e\u0301",
]
LONG = [
    "word " * 30, "ab" * 50, "a" * 200, "1" * 50, "é" * 40, "漢" * 40, "😀" * 20, "antidisestablishmentarianism", "Donaudampfschifffahrtsgesellschaftskapitän",
    "supercalifragilisticexpialidocious " * 3, "ACGT" * 25, "".join(chr(33 + i) for i in range(94)), "".join(chr(160 + i) for i in range(96)), "\n".join(f"{i}: {i * i}" for i in range(20)),
]
BLOCKS = [(0x20, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x530, 0x6FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1000, 0x18AF), (0x1E00, 0x20CF),
          (0x2100, 0x27BF), (0x3000, 0x33FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFD), (0x10300, 0x1044F), (0x1D100, 0x1D7FF), (0x20000, 0x2A6D6)]


def drawn():
    """Random mixtures. Only characters that Unicode 3.2 knew, so that no engine's tables are too old for them."""
    rng = random.Random(31)
    old = unicodedata.ucd_3_2_0
    pools = [[chr(c) for c in range(lo, hi + 1) if old.category(chr(c)) not in ("Cn", "Cs", "Co")] for lo, hi in BLOCKS]
    for pool in pools:
        for _ in range(4):
            yield "".join(rng.choice(pool) for _ in range(rng.randint(5, 40)))
    for _ in range(60):
        parts = []
        for _ in range(rng.randint(2, 8)):
            parts.append("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 6))))
            parts.append(rng.choice(["", " ", "  ", "\n", "\r\n", "\t", ".", "'s", "1", "<|im_end|>", "_", "—"]))
        yield "".join(parts)


def texts():
    for group in (SENTENCES, NUMBERS, SPACES, CODE, EMOJI, COMBINING, SPECIAL, LONG):
        yield from group
    yield from drawn()
