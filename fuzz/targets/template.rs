//! Chat templates: those of known models in small, with faults, over a conversation.

use fusebox_compiler::foundation::random::Random;
use fusebox_models::chat::Chat;
use serde_json::{Map, Value, json};

use crate::mutate;
use crate::targets::target::Target;

/// Templates, and pieces that make them go wrong.
const TEMPLATES: [&str; 12] = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}",
    "{%- if tools %}{{ tools | tojson(indent=4) }}{% endif %}{% for m in messages if m['role'] != 'system\
     ' %}{{ loop.index0 ~ m['content'] }}{% else %}none{% endfor %}",
    "{% set ns = namespace(x='aaaa', n=0) %}{% for i in range(20) %}{% set ns.x = ns.x + ns.x %}{% set ns\
     .n = ns.n + i %}{% endfor %}{{ ns.x | length }}",
    "{% macro f(x, y=2) %}{{ x * y }}{{ caller() if caller }}{% endmacro %}{{ f(3) }}{% call f('a') %}b{\
     % endcall %}",
    "{{ messages[0]['content'].split(' ')[-1].upper().replace('A', 'bb').strip() }}{{ messages[::-1] | ma\
     p(attribute='role') | join(', ') }}",
    "{{ raise_exception('no') if messages | selectattr('role', 'equalto', 'tool') | list | length > 3 }}{\
     { strftime_now('%Y-%m-%d') }}",
    "{{ '%10.3f|%s' | format(1.5, 'x') }}{{ 'a'.center(30) }}{{ 7 // 2 ** 3 % 5 }}{{ 'abc' | replace('', 'z') }}",
    "{% for k, v in messages[0] | dictsort %}{{ k }}={{ v | e }}{% endfor %}{{ [3, 1, 2] | sort(reverse=t\
     rue) | batch(2) | list }}",
    "{% filter upper %}a{% set x %}b{% endset %}{{ x }}{% endfilter %}{% generation %}c{% endgeneration %\
     }{% raw %}{{ }}{% endraw %}",
    "{% for m in messages recursive %}{{ m.role }}{{ loop(m.children) if m.children }}{% endfor %}{{ rang\
     e(5, 0, -2) | list }}",
    "{{ {'a': [1, {'b': none}], 2: true} | tojson }}{{ 'x' in 'xyz' and not false or 1 < 2 <= 3 }}{{ 'ä' \
     | int(default=3, base=16) }}",
    "{{ messages | groupby('role') | first | last }}{{ (1, 2) + (3,) }}{{ 'a\\nb' | indent(4) | wordwrap(\
     3) | title | truncate(5) }}",
];

/// Renders templates.
pub(crate) struct Template {
    all: Vec<String>,
    messages: Vec<Value>,
}

impl Template {
    pub(crate) fn new() -> Self {
        let messages =
            ["system", "user", "assistant", "user"].map(|role| json!({"role": role, "content": "A text."}));
        Self { all: TEMPLATES.map(str::to_owned).to_vec(), messages: messages.to_vec() }
    }
}

impl Target for Template {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let own = mutate::one(random, &self.all);
        mutate::text(random, own, &self.all).into_bytes()
    }

    fn run(&mut self, input: &[u8]) -> Result<bool, String> {
        let Ok(source) = std::str::from_utf8(input) else { return Ok(false) };
        let Ok(mut chat) = Chat::from_source(source, Map::new()) else { return Ok(false) };
        chat.set_clock(1_700_000_000);
        Ok(chat.render(&self.messages, true, &Map::new()).is_ok())
    }
}
