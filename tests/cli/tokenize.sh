# Text to tokens and back.
. tests/cli/lib.sh "$1"
text=examples/data/tinyshakespeare.txt
gpt2=tests/data/tokenizers/gpt2
llama=tests/data/tokenizers/llama2c-tok512/tokenizer.bin

# Known ids (tiktoken): the corpus has 338,025 GPT-2 tokens; llm.c's file holds a part.
printf 'Hello world' >"$tmp/hello"
ok "$dhelix" tokenize --tokenizer "$gpt2" "$tmp/hello" --stdout
same "$(tr '\n' ' ' <"$tmp/out")" '15496 995 '
ok "$dhelix" tokenize --tokenizer "$gpt2" "$text" -o "$tmp/gpt2.bin" --json
same "$(json tokens)" 338025
ok "$dhelix" tokenize --tokenizer "$gpt2" --decode "$tmp/gpt2.bin"
check 'decoding gives the text back' cmp "$tmp/out" "$text"

# Standard input is one document, like a file.
stdin=$tmp/hello
ok "$dhelix" tokenize --tokenizer "$gpt2" --stdout
same "$(tr '\n' ' ' <"$tmp/out")" '15496 995 '
ok "$dhelix" tokenize --tokenizer bytes - --stdout
same "$(head -2 "$tmp/out" | tr '\n' ' ')" '72 101 '
ok "$dhelix" tokenize --tokenizer "$llama" --stdout
cp "$tmp/out" "$tmp/ids"
stdin=$tmp/ids
ok "$dhelix" tokenize --tokenizer "$llama" --decode
check 'ids of standard input decode' cmp "$tmp/out" "$tmp/hello"
printf '1 2 three' >"$tmp/bad"
stdin=$tmp/bad
fails 1 '"three" is not a token id' "$dhelix" tokenize --tokenizer "$llama" --decode
printf '5 999999' >"$tmp/bad"
fails 1 '999999' "$dhelix" tokenize --tokenizer "$llama" --decode
stdin=/dev/null

# Characters: the file of the vocabulary lies beside the tokens.
ok "$dhelix" tokenize --tokenizer chars "$text" --output="$tmp/chars.bin" --json
same "$(json vocab)" 65
ok "$dhelix" tokenize --tokenizer "$tmp/chars.bin.chars.json" --decode "$tmp/chars.bin"
check 'characters decode' cmp "$tmp/out" "$text"
fails 1 'byte' "$dhelix" tokenize --tokenizer "$tmp/chars.bin.chars.json" tests/cli/lib.sh

# Documents of JSON lines end with EOS.
printf '{"body": "Hello"}\n{"body": " world"}\n' >"$tmp/docs.jsonl"
ok "$dhelix" tokenize --tokenizer "$gpt2" --text-field body "$tmp/docs.jsonl" --stdout
same "$(tr '\n' ' ' <"$tmp/out")" '15496 50256 995 50256 '

# Texts of special tokens are text, but on request.
printf 'Hello<|endoftext|> world' >"$tmp/marked"
ok "$dhelix" tokenize --tokenizer tests/data/chat --stdout "$tmp/marked"
check 'a mark is text' test "$(wc -l <"$tmp/out")" -gt 8
printf 'Hello<|im_start|> world' >"$tmp/marked"
ok "$dhelix" tokenize --tokenizer tests/data/chat --stdout "$tmp/marked" --special-tokens
check 'a mark is a token on request' grep -qx "$(grep -o '"id":[0-9]*,"content":"<|im_start|>"' \
    tests/data/chat/tokenizer.json | grep -o '[0-9]*' | head -1)" "$tmp/out"

# Conversations: ids, and which are learnt.
ok "$dhelix" tokenize --tokenizer tests/data/chat --chat-template chatml --stdout tests/data/chat/chat.jsonl
same "$(grep -c '^$' "$tmp/out")" 4 'an empty line behind each conversation'
check 'answers are learnt' grep -q '^[0-9]* 1$' "$tmp/out"
check 'questions are not' grep -q '^[0-9]* 0$' "$tmp/out"
fails 2 'cannot say which tokens are learnt' "$dhelix" tokenize --tokenizer tests/data/chat \
    --chat-template chatml -o "$tmp/x" tests/data/chat/chat.jsonl
fails 1 'no chat template "chatty"' "$dhelix" tokenize --tokenizer tests/data/chat --chat-template chatty \
    tests/data/chat/chat.jsonl

# A tokenizer of another kind.
ok "$dhelix" tokenize --tokenizer tests/data/tokenizers/hf/bert.json --stdout "$tmp/hello"
cp "$tmp/out" "$tmp/ids"
stdin=$tmp/ids
ok "$dhelix" tokenize --tokenizer tests/data/tokenizers/hf/bert.json --decode
same "$(cat "$tmp/out")" 'hello world'
stdin=/dev/null

fails 1 'tokenizer' "$dhelix" tokenize --tokenizer nonsense "$tmp/hello"
fails 1 'nowhere' "$dhelix" tokenize --tokenizer bytes "$tmp/nowhere"
fails 2 'leave' "$dhelix" tokenize --tokenizer bytes --decode -o x
# What is no text as it is read here is refused by name, whatever it is called.
printf '\037\213\010 and so on' >"$tmp/books.txt"
fails 1 'of the gzip file' "$dhelix" tokenize --tokenizer bytes "$tmp/books.txt"
for name in books.gz books.zst books.parquet; do
    echo '{"text": "a"}' >"$tmp/$name"
    fails 1 "$name is " "$dhelix" tokenize --tokenizer bytes "$tmp/$name"
done
# Documents are lines of JSON or one array, whatever the file is called; a text called so is neither.
for rows in '{"text": "a"}\n{"text": "b"}\n' '[\n {"text": "a"},\n {"text": "b"}\n]\n'; do
    for name in books.json books.jsonl books; do
        printf "$rows" >"$tmp/$name"
        ok "$dhelix" tokenize --tokenizer bytes --stdout "$tmp/$name"
        same "$(tr '\n' ' ' <"$tmp/out")" '97 98 ' "documents of $name"
    done
done
printf '{\n "text": "a"\n}\n' >"$tmp/books.json"
fails 1 'write an object a line (jq -c . FILE)' "$dhelix" tokenize --tokenizer bytes "$tmp/books.json"
# A byte-order mark is no part of the first line.
printf '\357\273\277{"text": "ab"}\n{"text": "c"}\n' >"$tmp/marked.jsonl"
ok "$dhelix" tokenize --tokenizer bytes --stdout "$tmp/marked.jsonl" --log-level info
same "$(tr '\n' ' ' <"$tmp/out")" '97 98 99 ' 'ids behind a byte-order mark'
check 'joined documents are noticed' grep -q 'follow each other without a mark' "$tmp/err"

# Beside a text may stand what strict JSON has not; half of a surrogate pair is told.
printf '%s\n' '{"id": 99999999999999999999, "text": "ab", "x": [NaN, -Infinity, 1e999]}' '{"text": "a\ud83d \ud83d\ude00 \"\\"}' >"$tmp/loose.jsonl"
ok "$dhelix" tokenize --tokenizer bytes --stdout "$tmp/loose.jsonl"
same "$(tr '\n' ' ' <"$tmp/out")" '97 98 97 239 191 189 32 240 159 152 128 32 34 92 ' 'texts beside odd numbers'
check 'halves are counted' grep -q 'half of a surrogate pair, read as U+FFFD, in 1 of' "$tmp/err"
for line in '{"text": "a", "x": 01}' '{"text": "a", "x": nan}' '{"text": "a"' '{"text": "a", "x": 1.}' '{"text": NaN}'; do
    echo "$line" >"$tmp/wrong.jsonl"
    fails 1 'line 1' "$dhelix" tokenize --tokenizer bytes --stdout "$tmp/wrong.jsonl"
done

# A tokenizer of one's own: learned, found by its folder, ids of its end of text behind documents.
printf '{"text": "low lower lowest low"}\n{"text": "low"}\n' >"$tmp/own.jsonl"
ok "$dhelix" tokenize --train-bpe 400 "$text" "$tmp/own.jsonl" -o "$tmp/own" --json
same "$(json vocab)" 400
ok "$dhelix" tokenize --tokenizer "$tmp/own" "$text" -o "$tmp/own.bin" --json
check 'it is shorter than bytes' test "$(json tokens)" -lt 800000
ok "$dhelix" tokenize --tokenizer "$tmp/own" --decode "$tmp/own.bin"
check 'decoding gives the text back' cmp "$tmp/out" "$text"
ok "$dhelix" tokenize --tokenizer "$tmp/own" --stdout "$tmp/own.jsonl"
same "$(grep -c '^0$' "$tmp/out")" 2 'ends of texts'
fails 1 'exists already' "$dhelix" tokenize --train-bpe 400 "$text" -o "$tmp/own"
fails 2 '--tokenizer' "$dhelix" tokenize --train-bpe 400 --tokenizer bytes "$text" -o "$tmp/own2"
fails 2 '--output' "$dhelix" tokenize --train-bpe 400 "$text"
fails 2 'from 257' "$dhelix" tokenize --train-bpe 100 "$text" -o "$tmp/own2"

# What was never written reads as zeros: a text has no holes. Small ones, as editors leave, count as text.
printf 'a text' >"$tmp/holes.txt"
truncate -s 100M "$tmp/holes.txt"
fails 1 'are holes, which read as zeros' "$dhelix" tokenize "$tmp/holes.txt" --tokenizer bytes -o "$tmp/holes.bin"
check 'nothing was written' test ! -e "$tmp/holes.bin"
truncate -s 8M "$tmp/holes.txt"
ok "$dhelix" tokenize "$tmp/holes.txt" --tokenizer bytes -o "$tmp/holes.bin"

finish
