"""The plots of the little stories, as templates; `corpus.py` fills them in.

`(a|b)` is one of several, `[a]` is there half of the time, `{word}` is filled in, and `^` makes the next letter large.
The hero is {n}, a {k}; the friend is {f}, a {fk}; {g} is an adult of the family, {v} a villager.
{he} {him} {his} are the hero, {fhe} {fhim} {fhis} the friend, {ghe} {gher} {gher2} the adult, {vhe} the villager.
Each plot has what it is about, its paragraphs, its lesson, the feeling at its end, and questions with their answers.
"""

from typing import NamedTuple


class Plot(NamedTuple):
    about: str
    paragraphs: list[str]
    lesson: str
    feeling: str
    questions: list[tuple[str, str]]


PLOTS = [
    Plot(
        "a lost {on}",
        [
            '''{n} had {o} that {he} loved more than anything. (One {time}|On {weather} {time}), the {on} was gone.
            ("Oh no!" cried {n}. "Where is my {on}?"|{n} felt {sadly}.) {he} looked under the bed, behind the door
            and in the {room}, but {he} could not find it.''',
            '''{n} asked {his} friend {f}, a {fa} {fk}, for help. "When did you last see it?" asked {f}. {n} thought
            hard. "I had it at the {place}," {he} said. So the two friends walked to the {place}. They looked (high
            and low|here and there|behind every stone). (At last|Then|After a while), {f} saw something {colour2}
            {under}. "Look!" {fhe} called. It was the {on}!''',
            '''{n} (jumped for joy|laughed out loud|hugged {f}). "Thank you, {f}," {he} said. "You are a
            (good|true|real) friend." From that day on, {n} always (took good care of|looked after) the {on}, and
            {he} let {f} play with it, too.''',
        ],
        "A good friend helps us to look for what we have lost.",
        "happy",
        [
            ("What did {n} lose?", "{n} lost {his} {on}."),
            ("Where was the {on}?", "The {on} was at the {place}."),
            ("Who helped {n}?", "{f} the {fk} helped {n}."),
            ("Who found the {on}?", "{f} found the {on}."),
        ],
    ),
    Plot(
        "a new friend",
        [
            '''{n} had just moved (to a new home|to a new house|there), and {he} did not know anyone. Every day, {he}
            sat alone by the {place} and watched the others play. {he} felt {lonely}. "I wish I had a friend," {he}
            said (softly|to the wind|with a sigh).''',
            '''(One {time}|On {weather} {time}), a {fa} {fk} came (down the path|along|over the hill) and sat down next
            to {n}. "Hello," said the {fk}. "My name is {f}. Why do you look so sad?" {n} looked (up|at the ground).
            "I have nobody to play with," {he} said. {f} smiled. "Then play with me," {fhe} said. "I know a
            (good|fine|wonderful) game."''',
            '''They {played} until (the sun went down|the stars came out|it was time for supper). (When it was time to
            go, {f} said, "Will you come again tomorrow?" "Yes!" said {n}.|"Can we play again tomorrow?" asked {n}.
            "Of course," said {f}.) That night, {n} went to bed with a smile. {he} was not lonely anymore.''',
        ],
        "A kind word can be the start of a friendship.",
        "happy",
        [
            ("Why was {n} sad?", "{n} was sad because {he} had nobody to play with."),
            ("What was the name of the {fk}?", "The {fk} was called {f}."),
            ("Who became {n}'s friend?", "{f} the {fk} became {n}'s friend."),
        ],
    ),
    Plot(
        "a storm",
        [
            '''(One {time}|One day), {n} went to the {place} to (look for {food}|play|pick flowers). The sky was
            (blue|clear) and the (air|sun) was warm. But soon dark clouds came (over the hills|from the sea|across
            the sky). The wind began to blow, and (big drops of|cold) rain began to fall. {n} was {afraid}.''',
            '''"Over here!" called a voice. It was {f}, a {fa} {fk}, who stood under (an old oak tree|a little wooden
            roof|a big rock). "There is room for two." {n} ran as fast as {he} could. The two sat close together and
            listened to the (rain|thunder). {f} shared {fhis} {food}, and {n} told a funny story. Soon they had
            forgotten (the storm|all about the storm).''',
            '''(At last|After an hour), the rain stopped. The sun came out, and a great rainbow stood over the {place}.
            "How beautiful!" said {n}. "Without the storm we would not have met," said {f}. They (walked home
            together|waved goodbye and promised to meet again), and they were friends from that day on.''',
        ],
        "Even a storm can bring something good.",
        "glad",
        [
            ("Where did {n} go?", "{n} went to the {place}."),
            ("Who called {n} out of the rain?", "{f} the {fk} called {n}."),
            ("What did they see after the storm?", "They saw a great rainbow."),
            ("What did {f} share?", "{f} shared {fhis} {food}."),
        ],
    ),
    Plot(
        "a quarrel",
        [
            '''{n} and {his} best friend {f}, a {fa} {fk}, did everything together. One {time} they found {o} (at|near)
            the {place}. "It is mine!" said {n}. "I saw it first." "No, it is mine!" said {f}. They pulled and
            pulled, (and they shouted at each other|until both of them fell down). Then {f} went home, and {fhe} was
            very (cross|angry).''',
            '''{n} kept the {on}, but it was no fun to play alone. {he} (sat down and thought|thought about it all
            day). "What is the use of {o2} if I have no friend?" {he} said. So {he} took the {on} and went to {f}'s
            house. "I am sorry," said {n}. "You can have it." {f} looked at the ground. "I am sorry, too," {fhe}
            said. ("I should not have shouted."|"I missed you.")''',
            '''Then {f} had an idea. "Let us share it. It can be (yours today, and mine tomorrow|yours in the morning,
            and mine in the evening)." {n} (laughed|smiled|nodded). "That is a (good|very good|fine) plan," {he}
            said. And so they played with the {on} together, and they never quarrelled about it again.''',
        ],
        "It is better to share than to play alone.",
        "happy",
        [
            ("What did they find?", "They found {o2}."),
            ("Who said sorry first?", "{n} said sorry first."),
            ("Why did they quarrel?", "They quarrelled because both of them wanted the {on}."),
            ("Whose idea was it to share?", "It was {f}'s idea to share."),
        ],
    ),
    Plot(
        "a rescue",
        [
            '''One {time}, {n} heard a (small|tiny|sad) voice near the {place}. "Help! Please help me!" {n} ran to see
            who it was. It was a {fa} {fk}, who was stuck (in a deep hole|between two big stones|in the thick mud)
            and could not get out. "My name is {f}," said the {fk}. "I have been here all (day|night), and I am so
            (tired|cold|hungry)."''',
            '''"Do not be afraid," said {n}. "I will help you." (First {he} pulled with all {his} strength, but it was
            no use.|{he} tried to pull, but {he} was not strong enough.) Then {n} saw (a long rope|a long branch|a
            wooden board) (near the path|in the grass). {he} (held out one end|pushed one end down) to {f}. "Hold
            on!" {he} called. {n} pulled and pulled, and (at last|slowly, slowly) {f} came out.''',
            '''"You saved me!" said {f}. "How can I thank you?" "You do not have to thank me," said {n}. "(Anyone would
            have helped|I was glad to help|That is what friends do)." They went to {n}'s home and had warm {food2}.
            After that day, {f} came to visit every week.''',
        ],
        "We should help those who are in trouble.",
        "proud",
        [
            ("Who was stuck?", "{f} the {fk} was stuck."),
            ("Who saved {f}?", "{n} saved {f}."),
            ("Where did {n} hear the voice?", "{n} heard the voice near the {place}."),
            ("What did they have at {n}'s home?", "They had warm {food2}."),
        ],
    ),
    Plot(
        "the dark",
        [
            '''{n} was (not afraid of anything but the dark|brave by day, but {he} was afraid of the dark). Every
            night, when the light went out, {he} (hid under the blanket|held {his} pillow tight). "There is
            something in the corner," {he} (whispered|said). "I can hear it."''',
            '''One night, {his} {g} came in with a little lamp. "Let us look together," {ghe} said. They looked in the
            corner. There was only (an old coat on a chair|a pair of boots|a basket of wool). They looked (behind
            the door|under the bed). There was only (a sleepy beetle|a lost sock|a bit of dust). Then {his} {g}
            opened the window. "The dark is not empty," {ghe} said. "It is full of stars. You cannot see them by
            day."''',
            '''{n} looked up and (began to count them|saw more stars than {he} could count). "One, two, three," {he}
            said. The moon was (round and bright|like a silver boat), and an owl called softly from the {place}.
            (Soon|Before long) {n} was fast asleep. From that night on, {he} was not afraid of the dark anymore.
            [{he} even left the window open, so that the stars could look in.]''',
        ],
        "The dark is not so bad when you look at it closely.",
        "brave",
        [
            ("What was {n} afraid of?", "{n} was afraid of the dark."),
            ("Who helped {n}?", "{n}'s {g} helped {him}."),
            ("What did {n} see in the sky?", "{n} saw the stars and the moon."),
        ],
    ),
    Plot(
        "learning to {skill}",
        [
            '''More than anything, {n} wanted to learn to {skill}. {his} friend {f}, a {fa} {fk}, could {skill} very
            well. But when {n} tried, (it all went wrong|{he} fell on {his} nose|nothing happened). (The others
            laughed|Some of the others laughed), and {n}'s face (grew hot|turned red). "I will never learn it," {he}
            said.''',
            '''"I could not do it at first, either," said {f}. "I tried for a whole (week|month|summer). Come to the
            {place} tomorrow, and I will show you." So every {time2} they met at the {place}. {n} tried, and failed,
            and tried again. (Some days|Sometimes) {he} wanted to give up, but {f} always said, "{once_more}"''',
            '''Then, (one {time}|on {weather} {time}), it (happened|worked). {n} could {skill}! {he} could hardly
            believe it. "Look at me!" {he} (shouted|called). "I can {skill}!" (Everyone came to see|The others came
            running), and this time nobody laughed. They clapped. And the one who clapped loudest was {f}.''',
        ],
        "If you keep trying, you will get better.",
        "proud",
        [
            ("What did {n} want to learn?", "{n} wanted to learn to {skill}."),
            ("Who showed {n} how to {skill}?", "{f} the {fk} showed {him}."),
            ("Where did they meet?", "They met at the {place}."),
        ],
    ),
    Plot(
        "a birthday cake",
        [
            '''It was the birthday of {n}'s {g}, and {n} wanted to bake {gher} a cake. {he} put flour, (sugar|honey)
            and butter into a big bowl. But when {he} looked for {ingredient}, {he} had none left. "What shall I
            do?" said {n}. "I cannot make a cake without {ingredient}."''',
            '''So {n} ran to {his} neighbour {f}, a {fa} {fk}. "Do you have some {ingredient}?" {he} asked. "Yes, I
            do," said {f}. "But my (stove|oven) is cold, and I have no wood." "I will bring you some," said {n}.
            {he} carried wood from the {place}, and {f} gave {him} {ingredient}. Then they mixed and stirred and
            baked together. Soon the (whole house|kitchen) smelled of (warm cake|sweet cake).''',
            '''In the evening, {n} put the cake on the table, with (a candle|three candles|a red berry) on top. {his}
            {g} came in and (clapped {gher2} hands|smiled from ear to ear). "Is this for me?" {ghe} asked. "Happy
            birthday!" called {n} and {f}. They (all ate|each had) a big piece, and it was the best cake they had
            ever tasted.''',
        ],
        "A gift made with love is the best gift.",
        "happy",
        [
            ("Whose birthday was it?", "It was the birthday of {n}'s {g}."),
            ("What was missing for the cake?", "{n} had no {ingredient}."),
            ("Who gave {n} {ingredient}?", "{f} the {fk} gave {him} {ingredient}."),
            ("What did {n} make?", "{n} made a cake."),
        ],
    ),
    Plot(
        "an old map",
        [
            '''One {time}, {n} found an old map in (a dusty box|an old book|the attic). There was a (red|black) cross
            on it, (next to|right behind) the {place}. "A treasure!" said {n}. {he} showed the map to {his} friend
            {f}, a {fa} {fk}. "Let us go (at once|right now)," said {f}, and they packed {food} and a
            (lamp|rope|spade).''',
            '''They walked (over the bridge|through the tall grass|down the long road) and (past the mill|up the
            hill|along the stream). The sun was hot, and their feet (hurt|were sore). "Are we there yet?" asked {f}.
            "Almost," said {n}. At last they came to the {place}. They dug and dug, until they (hit something
            hard|heard a knock). It was (a wooden box|an iron box|a small chest)! But inside there was no gold.
            There was only a (letter|note). "The treasure," it said, "is the friend who came with you."''',
            '''{n} looked at {f}, and {f} looked at {n}. Then they both (began to laugh|laughed). "It is true," said
            {n}. They sat down (in the shade|on a warm stone), ate their {food}, and watched the clouds. [Before
            they went home, they put the letter back, for the next one to find.] It had been a (wonderful|perfect)
            day.''',
        ],
        "A good friend is the greatest treasure.",
        "happy",
        [
            ("What did {n} find?", "{n} found an old map."),
            ("Was there gold in the box?", "No, there was only a letter in the box."),
            ("Who went with {n}?", "{f} the {fk} went with {n}."),
            ("Where was the treasure?", "The box was at the {place}."),
        ],
    ),
    Plot(
        "a little seed",
        [
            '''One spring {time3}, {v} gave {n} a little seed. "Put it into the ground," {vhe} said, "and give it water
            every day. Then you will see (something wonderful|a surprise)." {n} planted the seed (behind the
            house|near the gate|by the wall) and gave it water. {he} waited all day, but nothing (happened|grew).''',
            '''The next day {n} looked again. Nothing! A week went by, and still there was nothing but (brown|dark)
            earth. "It is a bad seed," said {n}. {he} was {cross}. But {his} friend {f}, a {fa} {fk}, said, "Good
            things take time. (Do not give up.|You must be patient.)" So {n} gave it water every {time2}, and {he}
            (sang to it|told it little stories), too.''',
            '''Then, one {time}, {n} saw a tiny green leaf. It grew and grew. By summer it was (a tall sunflower|a fine
            apple tree|a plant full of red berries|a rose with a hundred flowers), and (bees and birds|butterflies)
            came to visit. "You were right, {f}," said {n}. "It was worth the wait." [And in autumn, {n} gave a new
            seed to someone else.]''',
        ],
        "Good things take time.",
        "proud",
        [
            ("What did {n} plant?", "{n} planted a little seed."),
            ("Who gave {n} the seed?", "^{v} gave {n} the seed."),
            ("What did {f} say?", "{f} said that good things take time."),
        ],
    ),
    Plot(
        "a broken {cup}",
        [
            '''{n}'s {g} had a beautiful {cup} that stood on a high shelf. "Please do not touch it," {ghe} always said.
            One {time}, {n} played with a ball in the house. The ball flew up and hit the {cup}. Crash! It (fell
            down and broke|broke into three pieces).''',
            '''{n} was {afraid}. {he} hid the pieces (under the bed|in a drawer|behind the stove) and said nothing. But
            {he} could not eat {his} supper, and {he} could not sleep. {his} stomach felt as heavy as a stone. (In
            the middle of the night|At last), {he} got up and went to {his} {g}. "I broke your {cup}," {he} said,
            and (tears ran down {his} face|{he} began to cry). "I am so sorry."''',
            '''{his} {g} took {n} into {gher2} arms. "I am sad about the {cup}," {ghe} said, "but I am glad that you
            told me the truth." The next day, they (put the pieces together with glue|glued the pieces together).
            The {cup} was not as beautiful as before, but {n} (loved it more than ever|liked it even better). And
            {he} never played with a ball in the house again.''',
        ],
        "It is always best to tell the truth.",
        "relieved",
        [
            ("What did {n} break?", "{n} broke a {cup}."),
            ("Whose {cup} was it?", "It was the {cup} of {n}'s {g}."),
            ("Did {n} tell the truth?", "Yes, {n} told the truth in the end."),
        ],
    ),
    Plot(
        "the way home",
        [
            '''One {time}, {n} followed a (butterfly|blue bird|white feather) into the (deep|green|old) forest. {he}
            walked on and on, and {he} did not look back. When {he} stopped, all the trees looked the same. (The
            path was gone.|There was no path.) "I am lost," said {n}, and {his} heart began to beat (fast|hard). It
            was getting (dark|late).''',
            '''Just then, a {fa} {fk} (came out from behind a tree|looked down from a rock|came along). "Why are you
            here all alone?" asked the {fk}. "I cannot find my way home," said {n}. "Where do you live?" asked the
            {fk}. "I live {home}," said {n}. The {fk} nodded. "My name is {f}," {fhe} said. "I know (this
            forest|every tree here). Follow me, and stay close."''',
            '''They walked (by the light of the moon|under the first stars), across the (stream|little bridge) and past
            the {place}. (Soon|At last) {n} saw a light in a window. "That is my house!" {he} cried. {his} {g} stood
            at the door and (held out both arms|called {his} name). {n} turned to say thank you, and {f}
            (smiled|waved) and went back into the trees. After that, {n} never left the path without a friend.''',
        ],
        "Do not go too far alone, and do not be afraid to ask for help.",
        "glad",
        [
            ("Where did {n} get lost?", "{n} got lost in the forest."),
            ("Who showed {n} the way home?", "{f} the {fk} showed {him} the way home."),
            ("Who stood at the door?", "{n}'s {g} stood at the door."),
        ],
    ),
    Plot(
        "a kind deed",
        [
            '''On {weather} {time}, {n} was on {his} way to the {place}. {he} had only (one piece of bread|a small
            pie|one apple) in {his} bag. By the road sat an old {woman} in a grey coat. "I am so hungry," said the
            old {woman}. "Do you have something to eat?" {n} was hungry, too, but {he} (did not think twice|felt
            sorry for the old {woman}). "Here," {he} said. "Take it."''',
            '''The old {woman} ate every crumb and smiled. "You have a good heart," said the old {woman}, "so I will
            give you this." It was {o}. "It looks like any other, but when you need help, {use_it}, and help will
            come." {n} (said thank you|put it in {his} bag) and went on. In the evening, {he} came to the river, and
            the bridge was gone! {n} (thought of the gift|took out the {on}) and did what the old {woman} had said.''',
            '''At once (a big fish|a great white swan|an old turtle) came up out of the water. "Sit on my back," it
            said, and it carried {n} across. {n} came home (safe and dry|just in time for supper). {he} kept the
            {on} all {his} life, and whenever {he} met someone who was hungry, {he} shared what {he} had.''',
        ],
        "Kindness comes back to those who give it.",
        "thankful",
        [
            ("What did the old {woman} give to {n}?", "The old {woman} gave {him} {o}."),
            ("What was wrong at the river?", "The bridge was gone."),
            ("Where was {n} going?", "{n} was going to the {place}."),
        ],
    ),
    Plot(
        "a snowman",
        [
            '''One winter {time3}, {n} woke up and looked out of the window. Everything was white! {he} put on (a warm
            hat|warm boots|a thick scarf) and ran outside. {his} friend {f}, a {fa} {fk}, was already there. "Let us
            build a snowman!" said {f}. They rolled (a big ball, a middle ball and a small ball|three big balls of
            snow). They gave him (a carrot|a red carrot) for a nose and two (stones|buttons) for eyes.''',
            '''They played with the snowman every day. But after a week, the sun grew warm, and the snowman grew small.
            "He is melting!" cried {n}. {he} was {sadly}. "We must save him." They put him in the shade, and they
            (brought him fresh snow|held an umbrella over him), but it was no use. One {time2} there was only a
            carrot in the wet grass.''',
            '''{n} wanted to cry, but {his} {g} said, "He is not gone. He has turned into water, and the water will
            make the flowers grow." And so it was. In spring, (yellow|blue|white) flowers grew right where the
            snowman had stood. "Hello, snowman," said {n}, and {he} smiled.''',
        ],
        "Nothing is ever quite lost.",
        "calm",
        [
            ("What did they build?", "They built a snowman."),
            ("What was the nose of the snowman?", "His nose was a carrot."),
            ("What grew where the snowman had stood?", "Flowers grew there."),
        ],
    ),
    Plot(
        "a race",
        [
            '''Every summer there was a race from the {place} to the old (mill|bridge|oak tree). {n} had practised for
            weeks, and {he} wanted to win. {f}, a {fa} {fk}, wanted to win, too. "I am the fastest of all," said
            {f}. "We will see," said {n}. {v} (rang a bell|waved a flag), and off they went!''',
            '''At first {f} was in front. But then {fhe} (fell over a root|stepped on a sharp stone) and hurt {fhis}
            foot. {n} ran past. {he} could see the end of the race. {he} only had to run on! But {he} heard {f} cry
            behind {him}, and {he} stopped. "Are you hurt?" {he} asked. "Yes," said {f}. "But go on, or you will not
            win." {n} shook {his} head. "Lean on me," {he} said.''',
            '''So they walked to the end together, and they were the very last. But everyone (cheered|clapped and
            cheered). {v} gave the prize, {o}, to both of them. "(You did not win the race|You were not the
            fastest)," {vhe} said, "but you (won something better|have the biggest heart)." And {f} never said again
            that {fhe} was the fastest of all.''',
        ],
        "It is more important to be kind than to win.",
        "proud",
        [
            ("Who hurt {fhis} foot?", "{f} hurt {fhis} foot."),
            ("Who won the race?", "Somebody else won, but {n} and {f} got a prize."),
            ("What was the prize?", "The prize was {o2}."),
            ("Who stopped to help?", "{n} stopped to help."),
        ],
    ),
    Plot(
        "too many berries",
        [
            '''One {time}, {n} found a bush full of sweet (red|blue|black) berries near the {place}. "They are all for
            me," {he} said. {his} friend {f}, a {fa} {fk}, came along. "May I have some?" {fhe} asked. "No," said
            {n}. "I found them." {f} went away, and {fhe} looked sad.''',
            '''{n} ate one berry, and then ten, and then a hundred. {he} ate until the bush was (almost |)empty. But
            then {his} stomach began to hurt. "Oh, oh," {he} cried, and {he} lay down in the grass. {he} could not
            (walk|get up). Who should come by but {f}? "I ate too much," said {n}. {f} did not laugh. {fhe} made
            some warm tea and sat with {n} until {he} felt better.''',
            '''"I was greedy," said {n}, "and you were kind to me. I am sorry." There were (five|six|seven|eight)
            berries left on the bush. {n} gave them all to {f}. But {f} said, "(Half for you, and half for me|Let us
            share them)." And those last berries tasted (the best|better than all the others).''',
        ],
        "It is not good to be greedy.",
        "sorry but glad",
        [
            ("What did {n} find?", "{n} found a bush full of berries."),
            ("Why did {n}'s stomach hurt?", "It hurt because {he} ate too many berries."),
            ("Who made tea?", "{f} made tea."),
        ],
    ),
    Plot(
        "a broken bridge",
        [
            '''There was a little bridge over the (stream|river), and everyone used it. One night, (a storm|a flood)
            broke the bridge. In the {time3}, {n} stood on one side, and {his} friend {f}, a {fa} {fk}, stood on the
            other. "How can we (meet now|play now)?" called {f}. The water was too (deep|wild) to cross.''',
            '''"We will build a new bridge," called {n}. {he} brought (wood|long boards|branches) from the {place}, and
            {f} brought (ropes|nails|stones). {v} came to help, too. It was hard work. (They worked all day|They
            worked for three days), and when they were tired, they {sang}. [When one board broke, they took a
            stronger one.]''',
            '''At last the bridge was ready. {n} came from one side, and {f} came from the other, and they met right in
            the middle. ("We did it!" they cried.|They hugged each other.) The new bridge was (stronger|wider and
            stronger) than the old one, and it (is still there|stood for many years). [And on warm evenings, the two
            friends sat on it and let their feet hang over the water.]''',
        ],
        "Together we can do what we cannot do alone.",
        "proud",
        [
            ("What broke?", "The bridge broke."),
            ("Who built the new bridge?", "{n} and {f} built it, and {v} helped them."),
            ("Where did {n} and {f} meet?", "They met in the middle of the bridge."),
        ],
    ),
    Plot(
        "a sick friend",
        [
            '''Every {time2}, {n} met {his} friend {f}, a {fa} {fk}, at the {place}. But one day {f} did not come. {n}
            waited and waited. "Something is wrong," {he} thought, and {he} (ran|hurried) to {f}'s house. {f} lay in
            bed, and {fhis} nose was (red|hot). "I am sick," said {f}. "I cannot play today."''',
            '''{n} wanted to help. {he} went home and (made|cooked) a big pot of {food2}. {he} picked
            (yellow|blue|white) flowers, and {he} took {o} from {his} shelf. Then {he} carried everything to {f}.
            {n} opened the window, told a funny story, and stayed until {f} fell asleep. (The next day {he} came
            again, and the day after, too.|{he} came back every day.)''',
            '''After (three days|a week), there was a knock at {n}'s door. It was {f}! "I am well again," said {f}.
            "Your {food2} was good, but (your stories were|your visit was) even better." (They ran to the {place}
            and {played}.|And off they went to the {place}, side by side.)''',
        ],
        "A visit can be the best medicine.",
        "happy",
        [
            ("Who was sick?", "{f} the {fk} was sick."),
            ("What did {n} cook?", "{n} cooked {food2}."),
            ("What did {n} take from the shelf?", "{n} took {o2} from the shelf."),
        ],
    ),
    Plot(
        "a gift",
        [
            '''It was the day before (the great feast|the winter feast|the spring feast), and everyone looked for
            gifts. {n} wanted to give something to {his} {g}, but {he} had no coins. In the market there were
            (silver spoons|warm coats|golden rings) and {colour} (ribbons|hats|shoes). {n} could not buy anything.
            {he} walked home slowly and felt {sadly}.''',
            '''On the way, {he} met {f}, a {fa} {fk}. "Why do you need coins?" asked {f}. "You can make something." {n}
            thought about it. {he} found (a smooth piece of wood|a round white stone|some soft wool) near the
            {place}. All evening, {he} worked (by the fire|in the {room}). {f} helped, and they (sang|told jokes)
            while they worked. When the moon was high, it was done: {o_made}.''',
            '''The next day, {n} gave it to {his} {g}. "It is not from the market," said {n}. "I made it for you."
            {his} {g} (held it up to the light|looked at it for a long time). ^{gher2} eyes were wet. "No market in
            the world has anything (as fine as|so beautiful as) this," {ghe} said, and {ghe} kept it (always|as long
            as {ghe} lived).''',
        ],
        "A gift from the heart needs no coins.",
        "proud",
        [
            ("Why could {n} not buy a gift?", "{n} had no coins."),
            ("Who helped {n}?", "{f} the {fk} helped {him}."),
            ("What did {n} make?", "{n} made {o_made}."),
        ],
    ),
    Plot(
        "the wind",
        [
            '''On a windy {time}, {n} walked to the {place} with {o}. Whoosh! A strong wind came and took the {on}
            right (out of {his} hands|away). Up and up it went, over the (roofs|trees). "Stop!" called {n}, but the
            wind does not listen to anyone.''',
            '''{n} ran after it. {he} ran (past the mill|over the bridge|across the field) and (through a hedge|around
            the pond), until {he} was out of breath. There, (in the top of a tree|on a high wall|on a roof), hung
            the {on}. It was much too high. "Can I help you?" asked somebody. It was a {fa} {fk}. "I am {f}," {fhe}
            said. "I am good at climbing." And {f} climbed up, higher and higher, and {fhe} brought the {on} down.''',
            '''"How can I thank you?" asked {n}. "(May I play with it, too|Let me play with you for a while)?" said
            {f}. So they {played} together all afternoon. "The wind took my {on}," said {n}, "but it gave me a
            friend." And the wind (laughed in the leaves|blew softly over the hills).''',
        ],
        "What seems like bad luck may turn out well.",
        "happy",
        [
            ("What did the wind take?", "The wind took the {on}."),
            ("Who climbed up?", "{f} the {fk} climbed up."),
            ("What did the wind give to {n}?", "The wind gave {him} a friend."),
        ],
    ),
    Plot(
        "a song",
        [
            '''{n} loved to sing, but only when nobody could hear {him}. {he} was very shy. One {time}, {v} said,
            "There will be a feast at the {place}. Who wants to sing?" {n} wanted to raise {his} hand, but {he} was
            {afraid}. {his} friend {f}, a {fa} {fk}, saw it. "{n} can sing!" said {f}.''',
            '''All week long, {n} practised in the {room}. Then the evening came. There were (lights in all the trees|a
            hundred little lamps), and the whole village was there. {n} stood in front of them all. {he} opened
            {his} mouth, but no sound came out. (It was very still.|{his} knees began to shake.) Then {n} heard a
            soft voice. It was {f}, who began to sing (the first words|the song) from the very last row.''',
            '''{n} took a deep breath and sang along. {his} voice was small at first, but it grew (clear and
            strong|stronger and stronger). When the song was over, (it was quiet for a moment|nobody said a word).
            Then everyone (clapped and shouted for more|clapped and clapped). "You see?" said {f}. {n} laughed.
            "Next time," {he} said, "we will sing together."''',
        ],
        "A friend can give us courage.",
        "proud",
        [
            ("What did {n} love?", "{n} loved to sing."),
            ("Who began to sing first?", "{f} began to sing first."),
            ("Where was the feast?", "The feast was at the {place}."),
        ],
    ),
    Plot(
        "a night without sleep",
        [
            '''One night, {n} could not sleep. {he} turned to the left, and {he} turned to the right. {he} counted
            (sheep|stars), but it did not help. So {he} got up (quietly|softly) and went outside. The (moon
            was|stars were) bright. {f}, a {fa} {fk}, sat (by the well|on the wall|near the gate). "Can you not
            sleep, either?" asked {n}. "No," said {f}.''',
            '''"Let us ask the {wise}," said {n}. So they walked to the {place}, where the {wise} lived. "We cannot
            sleep," they said. "What shall we do?" The {wise} (thought for a while|closed one eye). "Tell me about
            your day," said the {wise}, "from the beginning to the end." So {n} told about the {food} {he} had
            eaten, and {f} told about the games {fhe} had played. They talked and talked, and their voices grew
            slower and slower.''',
            '''"And then," said {n}, "and then..." But {he} did not finish, for {he} was asleep, and so was {f}. The
            {wise} put a (soft|warm) blanket over them and smiled. In the {time3}, the two friends woke up in the
            (sun|grass) and (laughed|went home for breakfast). [Since then, {n} tells about {his} day every evening,
            and {he} sleeps very well.]''',
        ],
        "Talking about your day brings good sleep.",
        "rested",
        [
            ("Why did {n} get up?", "{n} got up because {he} could not sleep."),
            ("Whom did they ask?", "They asked the {wise}."),
            ("Who sat outside?", "{f} the {fk} sat outside."),
        ],
    ),
    Plot(
        "a strange egg",
        [
            '''One {time}, {n} found a big (blue|green|white|golden) egg near the {place}. It was still warm. "Where is
            your mother?" asked {n}, but of course the egg did not answer. {he} looked (everywhere|all around), but
            there was no nest. So {n} (put the egg into {his} hat|wrapped the egg in a scarf) and carried it home.''',
            '''"You must keep it warm," said {his} {g}. So {n} and {his} friend {f}, a {fa} {fk}, took turns. {n} sat
            with the egg by day, and {f} sat with it by night. After (three|five|seven) days, they heard a tap. Then
            they heard a crack. Out came (a little dragon|a tiny duck|a small goose)! It looked at {n} and said,
            "{peep}" "It thinks that you are its mother," said {f}, and {fhe} laughed.''',
            '''They gave it {food} and taught it to (swim|walk|fly). It grew and grew. One autumn {time3}, it (flew up
            into the sky|spread its wings), went around the house three times, and was gone. {n} was a little sad.
            But every spring it came back to visit, and it (always|never forgot to bring a gift|sat on the roof and
            sang).''',
        ],
        "When we love somebody, we also let them go.",
        "a little sad, but also proud",
        [
            ("What did {n} find?", "{n} found a big egg."),
            ("Who sat with the egg by night?", "{f} sat with the egg by night."),
            ("Where did {n} find the egg?", "{n} found it near the {place}."),
        ],
    ),
    Plot(
        "a wish",
        [
            '''One {time}, {n} saw a (small golden|little silver) fish in the {water}. It was caught in a net. "Please
            let me go," said the fish, "and I will give you one wish." {n} opened the net at once. "You are free,"
            {he} said. "Now make your wish," said the fish.''',
            '''{n} thought about it all day. {he} could wish for {o}, or for (a big house|a hundred cakes|a mountain of
            sweets). Then {he} saw {his} friend {f}, a {fa} {fk}, who sat on the steps and (held {fhis} leg|looked
            very pale). "What is the matter?" asked {n}. "I hurt my leg," said {f}, "and I cannot run with you." Now
            {n} knew what to do. {he} ran back to the {water}. "I wish that {f} can run again!" {he} called.''',
            '''The fish (jumped|shone like a star), and (a warm wind went over the water|the water began to glow). When
            {n} came home, {f} ran to meet {him}. "My leg is well!" called {f}. "But what about you? You have
            nothing." {n} laughed. "I have (someone to run with|a friend to run with)," {he} said. "What more could
            I wish for?"''',
        ],
        "The best wish is one for somebody else.",
        "happy",
        [
            ("What did {n} find in the net?", "{n} found a fish in the net."),
            ("What was {n}'s wish?", "{n} wished that {f} could run again."),
            ("Who hurt {fhis} leg?", "{f} hurt {fhis} leg."),
        ],
    ),
]
