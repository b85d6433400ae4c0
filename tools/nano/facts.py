"""The facts that lily-nano is taught: countries, word definitions, opposites,
calendar. Own text. Countries whose capital is disputed are left out."""

# country; capital; continent. A leading "the " is part of running text.
_COUNTRIES = """
Afghanistan;Kabul;Asia|Albania;Tirana;Europe|Algeria;Algiers;Africa|Andorra;Andorra la Vella;Europe|Angola;Luanda;Africa
Argentina;Buenos Aires;South America|Armenia;Yerevan;Asia|Australia;Canberra;Oceania|Austria;Vienna;Europe|Azerbaijan;Baku;Asia
the Bahamas;Nassau;North America|Bahrain;Manama;Asia|Bangladesh;Dhaka;Asia|Barbados;Bridgetown;North America|Belarus;Minsk;Europe
Belgium;Brussels;Europe|Belize;Belmopan;North America|Benin;Porto-Novo;Africa|Bhutan;Thimphu;Asia|Bolivia;Sucre;South America
Bosnia and Herzegovina;Sarajevo;Europe|Botswana;Gaborone;Africa|Brazil;Brasilia;South America|Brunei;Bandar Seri Begawan;Asia
Bulgaria;Sofia;Europe|Burkina Faso;Ouagadougou;Africa|Burundi;Gitega;Africa|Cambodia;Phnom Penh;Asia|Cameroon;Yaounde;Africa
Canada;Ottawa;North America|Cape Verde;Praia;Africa|the Central African Republic;Bangui;Africa|Chad;N'Djamena;Africa
Chile;Santiago;South America|China;Beijing;Asia|Colombia;Bogota;South America|the Comoros;Moroni;Africa|Costa Rica;San Jose;North America
Croatia;Zagreb;Europe|Cuba;Havana;North America|Cyprus;Nicosia;Europe|the Czech Republic;Prague;Europe
the Democratic Republic of the Congo;Kinshasa;Africa|Denmark;Copenhagen;Europe|Djibouti;Djibouti City;Africa|Dominica;Roseau;North America
the Dominican Republic;Santo Domingo;North America|East Timor;Dili;Asia|Ecuador;Quito;South America|Egypt;Cairo;Africa
El Salvador;San Salvador;North America|Eritrea;Asmara;Africa|Estonia;Tallinn;Europe|Eswatini;Mbabane;Africa|Ethiopia;Addis Ababa;Africa
Fiji;Suva;Oceania|Finland;Helsinki;Europe|France;Paris;Europe|Gabon;Libreville;Africa|the Gambia;Banjul;Africa|Georgia;Tbilisi;Asia
Germany;Berlin;Europe|Ghana;Accra;Africa|Greece;Athens;Europe|Grenada;Saint George's;North America|Guatemala;Guatemala City;North America
Guinea;Conakry;Africa|Guinea-Bissau;Bissau;Africa|Guyana;Georgetown;South America|Haiti;Port-au-Prince;North America
Honduras;Tegucigalpa;North America|Hungary;Budapest;Europe|Iceland;Reykjavik;Europe|India;New Delhi;Asia|Indonesia;Jakarta;Asia
Iran;Tehran;Asia|Iraq;Baghdad;Asia|Ireland;Dublin;Europe|Italy;Rome;Europe|the Ivory Coast;Yamoussoukro;Africa|Jamaica;Kingston;North America
Japan;Tokyo;Asia|Jordan;Amman;Asia|Kazakhstan;Astana;Asia|Kenya;Nairobi;Africa|Kiribati;South Tarawa;Oceania|Kuwait;Kuwait City;Asia
Kyrgyzstan;Bishkek;Asia|Laos;Vientiane;Asia|Latvia;Riga;Europe|Lebanon;Beirut;Asia|Lesotho;Maseru;Africa|Liberia;Monrovia;Africa
Libya;Tripoli;Africa|Liechtenstein;Vaduz;Europe|Lithuania;Vilnius;Europe|Luxembourg;Luxembourg City;Europe|Madagascar;Antananarivo;Africa
Malawi;Lilongwe;Africa|Malaysia;Kuala Lumpur;Asia|the Maldives;Male;Asia|Mali;Bamako;Africa|Malta;Valletta;Europe
the Marshall Islands;Majuro;Oceania|Mauritania;Nouakchott;Africa|Mauritius;Port Louis;Africa|Mexico;Mexico City;North America
Micronesia;Palikir;Oceania|Moldova;Chisinau;Europe|Monaco;Monaco;Europe|Mongolia;Ulaanbaatar;Asia|Montenegro;Podgorica;Europe
Morocco;Rabat;Africa|Mozambique;Maputo;Africa|Myanmar;Naypyidaw;Asia|Namibia;Windhoek;Africa|Nepal;Kathmandu;Asia
the Netherlands;Amsterdam;Europe|New Zealand;Wellington;Oceania|Nicaragua;Managua;North America|Niger;Niamey;Africa|Nigeria;Abuja;Africa
North Korea;Pyongyang;Asia|North Macedonia;Skopje;Europe|Norway;Oslo;Europe|Oman;Muscat;Asia|Pakistan;Islamabad;Asia|Palau;Ngerulmud;Oceania
Panama;Panama City;North America|Papua New Guinea;Port Moresby;Oceania|Paraguay;Asuncion;South America|Peru;Lima;South America
the Philippines;Manila;Asia|Poland;Warsaw;Europe|Portugal;Lisbon;Europe|Qatar;Doha;Asia|the Republic of the Congo;Brazzaville;Africa
Romania;Bucharest;Europe|Russia;Moscow;Europe|Rwanda;Kigali;Africa|Saint Lucia;Castries;North America|Samoa;Apia;Oceania
San Marino;San Marino;Europe|Saudi Arabia;Riyadh;Asia|Senegal;Dakar;Africa|Serbia;Belgrade;Europe|the Seychelles;Victoria;Africa
Sierra Leone;Freetown;Africa|Singapore;Singapore;Asia|Slovakia;Bratislava;Europe|Slovenia;Ljubljana;Europe|the Solomon Islands;Honiara;Oceania
Somalia;Mogadishu;Africa|South Africa;Pretoria;Africa|South Korea;Seoul;Asia|South Sudan;Juba;Africa|Spain;Madrid;Europe
Sri Lanka;Sri Jayawardenepura Kotte;Asia|Sudan;Khartoum;Africa|Suriname;Paramaribo;South America|Sweden;Stockholm;Europe
Switzerland;Bern;Europe|Syria;Damascus;Asia|Tajikistan;Dushanbe;Asia|Tanzania;Dodoma;Africa|Thailand;Bangkok;Asia|Togo;Lome;Africa
Tonga;Nuku'alofa;Oceania|Trinidad and Tobago;Port of Spain;North America|Tunisia;Tunis;Africa|Turkey;Ankara;Asia|Turkmenistan;Ashgabat;Asia
Tuvalu;Funafuti;Oceania|Uganda;Kampala;Africa|Ukraine;Kyiv;Europe|the United Arab Emirates;Abu Dhabi;Asia|the United Kingdom;London;Europe
the United States;Washington, D.C.;North America|Uruguay;Montevideo;South America|Uzbekistan;Tashkent;Asia|Vanuatu;Port Vila;Oceania
Vatican City;Vatican City;Europe|Venezuela;Caracas;South America|Vietnam;Hanoi;Asia|Yemen;Sanaa;Asia|Zambia;Lusaka;Africa|Zimbabwe;Harare;Africa
"""
COUNTRIES = [tuple(e.split(";")) for line in _COUNTRIES.strip().split("\n") for e in line.split("|")]

# word=definition; the article in front of the word is derived below.
_DEFINITIONS = """
acorn=the nut of an oak tree|actor=a person who plays a part in a film or a play|airport=a place where planes land and take off
alphabet=the set of letters used in a language|anchor=a heavy hook that keeps a ship in one place|ankle=the joint between the foot and the leg
ant=a small insect that lives in a large group|apple=a round fruit that grows on trees|apron=a cloth worn in front to keep clothes clean
aquarium=a glass tank for fish|arrow=a thin stick with a point that is shot from a bow|artist=a person who makes art
astronaut=a person who travels into space|atlas=a book of maps|attic=a room under the roof of a house|aunt=the sister of a parent
axe=a tool for chopping wood|baby=a very young child|baker=a person who makes bread|balcony=a platform on the outside of a building
ball=a round thing used in games|balloon=a thin rubber bag filled with air|banana=a long yellow fruit|bank=a place that keeps money safe
barn=a farm building for animals and hay|basket=a container woven from thin sticks|bat=a flying animal that is active at night
beach=a strip of sand beside the sea|bear=a large heavy animal with thick fur|beard=the hair that grows on the chin|bed=a piece of furniture for sleeping
bee=an insect that makes honey|bell=a metal object that rings when it is hit|belt=a band worn around the waist|bench=a long seat for several people
bicycle=a vehicle with two wheels and pedals|bird=an animal with feathers and wings|blanket=a warm cover for a bed|boat=a small vehicle that moves on water
bone=a hard part inside the body|book=a set of pages bound together for reading|boot=a shoe that covers the ankle|bottle=a container with a narrow neck for liquids
bowl=a round deep dish|box=a container with flat sides|brain=the organ that we think with|bread=a food made of baked flour and water
brick=a block of baked clay for building|bridge=a structure that carries a road over water|broom=a brush with a long handle for sweeping
brother=a boy or man with the same parents|brush=a tool with hairs for cleaning or painting|bucket=an open container with a handle for carrying water
bus=a large vehicle that carries many passengers|butcher=a person who sells meat|butter=a soft yellow food made from cream
butterfly=an insect with large colourful wings|button=a small round thing that fastens clothes|cactus=a desert plant with spines|cage=a box with bars for animals
cake=a sweet baked food|calendar=a table of the days and months of a year|camel=a desert animal with humps|camera=a device for taking pictures
candle=a stick of wax that gives light when it burns|car=a road vehicle with four wheels and an engine|carpenter=a person who makes things of wood
carpet=a thick cloth that covers a floor|carrot=a long orange root that we eat|castle=a large old building with thick walls|cat=a small furry pet that catches mice
cave=a hollow place in rock|chair=a seat with a back for one person|cheese=a food made from milk|chess=a board game for two players with kings and queens
chicken=a farm bird kept for eggs and meat|chimney=a pipe that carries smoke out of a house|cinema=a place where films are shown
circle=a perfectly round shape|circus=a travelling show with acrobats and clowns|city=a very large town|clock=a device that shows the time
cloud=a white or grey mass of water drops in the sky|coat=a warm piece of clothing worn outdoors|coffee=a hot drink made from roasted beans
coin=a round piece of metal used as money|comb=a flat tool with teeth for tidying hair|compass=a device that shows where north is
computer=a machine that works with data|cook=a person who prepares food|corn=a plant with yellow grains on a cob|cotton=a soft white plant fibre used for cloth
cousin=a child of an aunt or uncle|cow=a farm animal that gives milk|crab=a sea animal with claws and a hard shell|crown=a ring of gold worn by a king or queen
cup=a small container for drinks|curtain=a cloth that hangs in front of a window|dam=a wall that holds back a river|dentist=a doctor for teeth
desert=a dry place with very little rain|desk=a table for writing and working|diamond=a very hard clear precious stone|diary=a book for writing down what happens each day
dictionary=a book that explains words|dinner=the main meal of the day|doctor=a person who treats sick people|dog=a loyal animal that barks
doll=a toy that looks like a person|dolphin=a clever sea animal that breathes air|donkey=an animal like a small horse with long ears|door=a panel that opens and closes an entrance
drawer=a box that slides in and out of furniture|dream=a story the mind sees during sleep|dress=a piece of clothing with a skirt for the whole body
drum=a round instrument that is hit with sticks|duck=a water bird with a flat beak|eagle=a large bird that hunts|ear=the part of the body that hears
earthquake=a sudden shaking of the ground|egg=an oval thing laid by a bird|elbow=the joint in the middle of the arm|elephant=a very large grey animal with a trunk
engine=a machine that makes things move|engineer=a person who designs machines or buildings|envelope=a paper cover for a letter
eye=the part of the body that sees|factory=a building where goods are made|farmer=a person who grows food and keeps animals
feather=a light part of a bird's covering|fence=a barrier around a piece of land|finger=one of the five long parts of a hand|fire=the heat and light of something burning
fish=an animal that lives in water and has fins|flag=a piece of cloth with the colours of a country|flood=a large amount of water over dry land
flour=a powder made from ground grain|flower=the colourful part of a plant|flute=a thin pipe that makes music when blown|fog=thick mist near the ground
forest=a large area covered with trees|fork=a tool with points for eating|fox=a wild animal with red fur and a bushy tail|friend=a person you like and trust
frog=a small green animal that jumps and lives near water|garage=a building for keeping a car|garden=a piece of land for growing plants|garlic=a strong smelling bulb used in cooking
ghost=the spirit of a dead person in a story|giraffe=a very tall animal with a long neck|glacier=a huge slow river of ice|glass=a hard clear material used for windows
glove=a cover for the hand|glue=a sticky liquid that joins things|goat=a farm animal with horns and a beard|gold=a yellow precious metal
grandmother=the mother of a parent|grass=a thin green plant that covers the ground|guitar=an instrument with six strings|hammer=a tool for hitting nails
hand=the part of the body at the end of the arm|harbour=a safe place for ships near the shore|hat=a thing worn on the head|heart=the organ that pumps blood
helicopter=an aircraft with spinning blades on top|helmet=a hard hat that protects the head|hen=a female chicken|hill=a piece of high ground smaller than a mountain
honey=a sweet food made by bees|horse=a large animal that people ride|hospital=a place where sick people are treated|hotel=a place where travellers pay to sleep
house=a building where people live|hunger=the feeling of needing food|ice=frozen water|island=a piece of land with water all around it
jacket=a short coat|jam=a sweet spread made from fruit|judge=a person who decides in a court of law|juice=the liquid from fruit
jungle=a thick hot forest|kettle=a pot for boiling water|key=a piece of metal that opens a lock|king=a man who rules a country
kitchen=a room for cooking|kite=a light toy that flies in the wind on a string|knee=the joint in the middle of the leg|knife=a tool with a blade for cutting
ladder=two long bars with steps for climbing|lake=a large area of water with land around it|lamp=a device that gives light|language=a system of words used to communicate
laptop=a small computer that can be carried|lawyer=a person who gives advice about the law|leaf=a flat green part of a plant|leather=a material made from animal skin
lemon=a sour yellow fruit|letter=a written message sent by post|library=a place where books are kept and lent|lightning=a flash of electricity in the sky
lion=a large wild cat with a mane|lizard=a small reptile with four legs and a tail|lock=a device that keeps a door shut|lung=an organ used for breathing
magnet=a piece of metal that attracts iron|map=a drawing of a place seen from above|market=a place where people buy and sell things|mask=a cover for the face
meadow=a field of grass and flowers|medicine=a substance that helps sick people|milk=a white drink from cows|mirror=a glass that shows your reflection
money=coins and notes used to pay|monkey=a clever animal that climbs trees|moon=the round body that circles the earth|mosquito=a small insect that bites and drinks blood
mountain=a very high piece of land|mouse=a very small animal with a long thin tail|museum=a building where old or beautiful things are shown
mushroom=a fungus with a stem and a cap|music=sounds arranged in a pleasant way|nail=a thin pointed piece of metal for joining wood|neck=the part of the body below the head
needle=a thin pointed tool for sewing|neighbour=a person who lives next door|nest=a home built by birds|newspaper=printed sheets with the news of the day
nose=the part of the face that smells|nurse=a person who cares for the sick|oak=a large tree that grows acorns|ocean=a very large area of salt water
octopus=a sea animal with eight arms|onion=a round vegetable with many layers|orange=a round juicy citrus fruit|orchestra=a large group of musicians
oven=a hot box for baking|owl=a bird that hunts at night|painter=a person who paints|palace=the large house of a king or queen
paper=a thin sheet for writing on|parrot=a colourful bird that can copy speech|passport=a document for travelling to other countries|pen=a tool for writing with ink
pencil=a wooden stick for writing and drawing|penguin=a black and white bird that swims and cannot fly|pepper=a hot spice made from small dried berries
piano=a large instrument with black and white keys|pig=a farm animal with a flat nose|pilot=a person who flies a plane|pillow=a soft cushion for the head
pirate=a robber at sea|planet=a large body that circles a star|plate=a flat dish for food|pocket=a small bag sewn into clothes|poem=a piece of writing with rhythm
potato=a root vegetable that grows underground|pumpkin=a large orange vegetable|puzzle=a game that makes you think|pyramid=a shape with a square base and a pointed top
queen=a woman who rules a country|rabbit=a small animal with long ears|rain=water that falls from clouds|rainbow=an arc of colours in the sky
refrigerator=a machine that keeps food cold|restaurant=a place where people pay to eat|rice=small white grains eaten as food|ring=a round band worn on a finger
river=a long stream of water that flows to the sea|robot=a machine that can do tasks by itself|rocket=a vehicle that flies into space|roof=the top cover of a building
rope=a thick strong string|rose=a flower with thorns and a sweet smell|salt=white grains that make food taste stronger|sand=tiny grains of rock
sandwich=two slices of bread with food between them|saw=a tool with teeth for cutting wood|school=a place where children learn|scissors=a tool with two blades for cutting paper
sea=a large area of salt water smaller than an ocean|shadow=a dark shape made by blocking light|shark=a large fish with sharp teeth|sheep=a farm animal that gives wool
shelf=a board on a wall for holding things|ship=a large boat|shirt=a piece of clothing for the upper body|shoe=a cover for the foot|shovel=a tool for digging
sister=a girl or woman with the same parents|skeleton=all the bones of a body|snail=a slow animal with a shell on its back|snake=a long animal without legs
snow=soft white frozen water that falls from the sky|soap=a substance used with water for washing|sock=a soft cover for the foot worn inside a shoe|sofa=a long soft seat
soldier=a person who serves in an army|soup=a liquid food eaten with a spoon|spider=a small animal with eight legs that spins webs|spoon=a tool for eating soup
square=a shape with four equal sides|squirrel=a small animal with a bushy tail that eats nuts|stairs=a set of steps in a building|star=a huge ball of hot gas in space
storm=very bad weather with strong wind|sugar=a sweet white powder|suitcase=a box with a handle for carrying clothes|sun=the star that gives us light
swan=a large white bird with a long neck|sword=a weapon with a long blade|table=a flat surface on legs|tailor=a person who makes clothes
tea=a hot drink made from dried leaves|teacher=a person who helps others learn|telephone=a device for talking over a distance|telescope=a device that makes distant things look near
tent=a shelter made of cloth|theatre=a place where plays are performed|thermometer=a device that measures temperature|thief=a person who steals
thunder=the loud sound after lightning|tiger=a large wild cat with stripes|tomato=a soft red fruit used in salads|tooth=a hard white thing in the mouth for biting
towel=a cloth for drying|tower=a tall narrow building|toy=a thing for children to play with|tractor=a strong vehicle used on farms|train=a line of carriages that runs on rails
tree=a tall plant with a trunk and branches|triangle=a shape with three sides|trumpet=a brass instrument that is blown|tunnel=a passage under the ground
turtle=a slow animal with a hard shell that lives in water|umbrella=a cover held up to keep off the rain|uncle=the brother of a parent|valley=low land between hills
vase=a container for flowers|vegetable=a plant that is eaten as food|village=a small group of houses in the country|violin=a small string instrument played with a bow
volcano=a mountain that can throw out hot rock|waiter=a person who serves food in a restaurant|wall=a solid side of a room or building|wallet=a small flat case for money
watch=a small clock worn on the wrist|waterfall=a place where a river drops over a cliff|wave=a moving ridge of water|whale=the largest animal in the sea
wheel=a round object that turns and lets things roll|wind=moving air|window=an opening in a wall with glass|wing=the part of a bird used for flying
winter=the coldest season of the year|summer=the warmest season of the year|spring=the season between winter and summer|autumn=the season between summer and winter
wolf=a wild animal like a large dog|wool=the soft hair of sheep|worm=a thin soft animal that lives in soil|zebra=an animal like a horse with black and white stripes
"""
DEFINITIONS = dict(e.split("=") for line in _DEFINITIONS.strip().split("\n") for e in line.split("|"))
_BARE = set("bread butter chess coffee corn cotton fire flour fog garlic glass gold grass honey hunger ice jam juice "
            "leather lightning medicine milk money music paper rain rice salt sand snow soap soup sugar tea thunder "
            "wind wool scissors stairs winter summer spring autumn".split())
_THE = {"moon", "sun"}


def with_article(word):
    if word in _BARE:
        return word
    if word in _THE:
        return "the " + word
    return ("an " if word[0] in "aeiou" else "a ") + word


_OPPOSITES = """hot cold|big small|tall short|fast slow|up down|left right|open closed|full empty|light dark|day night|happy sad|rich poor
young old|early late|easy difficult|hard soft|clean dirty|wet dry|strong weak|loud quiet|high low|near far|inside outside|true false
thick thin|wide narrow|heavy light|deep shallow|sweet sour|good bad|right wrong|begin end|buy sell|push pull|give take|win lose
love hate|remember forget|always never|everything nothing|above below|before after|first last|cheap expensive|brave cowardly
rough smooth|sharp blunt|tight loose|safe dangerous|north south|east west|summer winter|laugh cry|sleep wake|arrive leave|ask answer
friend enemy|war peace|success failure|noisy silent|beautiful ugly|kind cruel|lazy hardworking|modern ancient|question answer"""
OPPOSITES = {}
for pair in _OPPOSITES.replace("\n", "|").split("|"):
    a, b = pair.split()
    OPPOSITES.setdefault(a, b)
    OPPOSITES.setdefault(b, a)

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()

_MORE_WORDS = """about across action almost animal answer autumn balance before begin behind better between body bottom bright build
business careful carry centre certain change child choose clear climb close colour common corner country create danger decide
different early earth enough evening every example family famous field final follow future gentle giant glad great green group
happen healthy heavy history holiday hundred idea important interest invent journey kitchen knowledge large laugh learn light
listen little machine matter measure member metal middle minute modern moment morning mother nature nothing notice number object
often order paint parent people perhaps person picture plant please point power present problem promise quick quiet reason
remember result river round second sentence shape simple single sister smile sound special square station story street strong
student sudden surface surprise system thousand together tomorrow travel trouble under until useful visit voice water weather
weekend wonder world write yellow yesterday zero banana strawberry raspberry cherry pepper bottle cotton rabbit tunnel summer
winter spring letter coffee puzzle ribbon pillow ballet carrot kitten muffin noodle parrot saddle tennis wallet yogurt zipper"""
SPELL_WORDS = sorted(set(_MORE_WORDS.split()) | set(DEFINITIONS) | set(OPPOSITES))
